"""Promises that hold by zeros in the weights, which training fills; and those that hold with any weights."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrize, prune

from pytest_torchcheck import Contract, promises

CAUSAL = promises.Causal(dim=1, output_dim=1)
BELOW = torch.ones(6, 6).tril(-1)


class Once(nn.Linear):
    """Reads the features before each; the mask was multiplied into the weight once."""

    def __init__(self):
        super().__init__(6, 6)
        self.mask = BELOW.clone()
        with torch.no_grad():
            self.weight.mul_(self.mask)

    def forward(self, x):
        return F.linear(x, self.weight, self.bias)  # HERE


class InEachForward(Once):
    def forward(self, x):
        return F.linear(x, self.weight * self.mask, self.bias)


class WithHook(Once):
    """Masks the gradient instead of the weight."""

    def __init__(self):
        super().__init__()
        self.weight.register_hook(lambda grad: grad * self.mask)


class Below(nn.Module):
    def forward(self, weight):
        return weight * BELOW


def parametrized():
    layer = nn.Linear(6, 6)
    parametrize.register_parametrization(layer, "weight", Below())
    return layer


def pruned():
    layer = nn.Linear(6, 6)
    return prune.custom_from_mask(layer, "weight", BELOW)


class Sparse(nn.Module):
    """Weights drawn sparse, a zero-initialised head and padding rows: nothing here keeps the order."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(9, 8, padding_idx=0)
        self.cell, self.head = nn.GRU(8, 8, batch_first=True), nn.Linear(8, 5)
        nn.init.sparse_(self.cell.weight_hh_l0, 0.5)
        nn.init.eye_(self.cell.weight_ih_l0)
        nn.init.zeros_(self.head.weight)

    def forward(self, ids):
        return self.head(self.cell(self.table(ids))[0])


class Summed(nn.Module):
    """Sums embeddings; the row of the padding id starts as zeros, and stays so where it is declared."""

    def __init__(self, *, declared):
        super().__init__()
        self.table = nn.Embedding(9, 8, padding_idx=0 if declared else None)
        self.head = nn.Linear(8, 5)
        with torch.no_grad():
            self.table.weight[0] = 0

    def forward(self, ids):
        return self.head(torch.tanh(self.table(ids).sum(1)))


def findings(model, x, promise, check, *, targets=None, loss=None):
    target = torch.randn_like(x) if targets is None else targets
    report = Contract(
        model=model, batch=(x, target), loss=loss or F.mse_loss, promises=(promise,)
    ).check([check])
    return report.findings


def test_a_mask_applied_once_is_filled_by_training():
    (found,) = findings(Once, torch.randn(8, 6), CAUSAL, "causality")
    assert (found.status, found.code) == ("violated", "future-leak"), found
    assert found.location.text.endswith("# HERE")
    assert "holds on the initial weights, not after 3 training steps" in found.observed
    assert (
        "21 of 21 zeros of weight were filled by training" in found.observed
        or "of 21 zeros" in (found.observed)
    )
    assert {"weight", "mask"} <= {culprit.name for culprit in found.culprits}


@pytest.mark.parametrize("make", [InEachForward, WithHook, parametrized, pruned])
def test_a_mask_that_stays_is_none(make):
    (found,) = findings(make, torch.randn(8, 6), CAUSAL, "causality")
    assert found.status == "passed", found


def test_a_zero_head_hides_it_at_first():
    class Model(nn.Sequential):
        def __init__(self):
            super().__init__(Once(), nn.Linear(1, 1))
            nn.init.zeros_(self[1].weight)

        def forward(self, x):
            return self[1](self[0](x)[..., None])[..., 0]

    (found,) = findings(Model, torch.randn(8, 6), CAUSAL, "causality")
    assert found.status == "violated", found
    assert "zeros of 0.weight" in found.observed


def test_zeros_that_promise_nothing_may_be_filled():
    ids = torch.randint(1, 9, (6, 7))
    (found,) = findings(
        Sparse, ids, CAUSAL, "causality", targets=torch.randint(0, 5, (6, 7)),
        loss=lambda output, target: F.cross_entropy(output.flatten(0, 1), target.flatten()),
    )  # fmt: skip
    assert found.status == "inconclusive", found  # the head is zero


@pytest.mark.parametrize("declared", [True, False])
def test_a_row_for_padding_that_is_zero_only_at_first(declared):
    ids = torch.randint(1, 9, (6, 7)) * (torch.arange(7) < torch.arange(2, 8)[:, None])
    (found,) = findings(
        lambda: Summed(declared=declared), ids, promises.PaddingInvariant(ids=0, pad=0), "padding-invariance",
        targets=torch.randint(0, 5, (6,)), loss=F.cross_entropy,
    )  # fmt: skip
    assert found.status == ("passed" if declared else "violated"), found
    assert ("8 of 8 zeros of table.weight were filled" in found.observed) != declared
