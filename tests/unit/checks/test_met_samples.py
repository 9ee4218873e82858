"""Weights of samples that meet the losses of all samples; and products over pairs that are meant, or are none."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract


class Weighted(nn.Module):
    """Computes its own loss, one number for each sample, and weighs it; subclasses say how."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.register_buffer("table", torch.linspace(0.1, 1, 20))

    def forward(self, x, t):
        error = (self.body(x) - x).square().mean((1, 2))
        weight = self.table[t]
        return self.loss(error, weight)


def column(weight, dims=3):
    return weight.reshape(len(weight), *(1,) * (dims - 1))


class AsTheSignal(Weighted):
    def loss(self, error, weight):
        return (error * column(weight)).mean()  # HERE


class InTwoSteps(Weighted):
    def loss(self, error, weight):
        weight = weight.unsqueeze(-1)
        weighted = error * weight  # HERE
        return weighted.sum(1).mean()


class Divided(Weighted):
    def loss(self, error, weight):
        scale = weight[:, None]
        total = error / scale  # HERE
        return 0.5 * total.mean(dim=0).sum() + error.mean()


class Aligned(Weighted):
    def loss(self, error, weight):
        return (error * weight).mean()


class BothColumns(Weighted):
    def loss(self, error, weight):
        return (error[:, None] * column(weight, 2)).mean()


class Deliberate(Weighted):
    """Takes the mean over all pairs on purpose, on one line."""

    def loss(self, error, weight):
        return (weight[:, None] * error).mean() + error.mean()


class Kernel(Weighted):
    """Multiplies pairs with a kernel of theirs."""

    def loss(self, error, weight):
        kernel = torch.exp(-(weight[:, None] - weight[None]).square())
        other = column(weight, 2)
        pairs = error * other
        return (pairs * kernel).mean()


class Contrast(Weighted):
    def loss(self, error, weight):
        other = column(weight, 2)
        scores = error * other
        return scores.logsumexp(1).mean()


class Hardest(Weighted):
    def loss(self, error, weight):
        other = column(weight, 2)
        pairs = error * other
        return pairs.amax(1).mean()


class OffDiagonal(Weighted):
    def loss(self, error, weight):
        other = column(weight, 2)
        pairs = error * other
        return pairs.masked_fill(torch.eye(len(error)) > 0, 0).mean()


class Einsum(Weighted):
    def loss(self, error, weight):
        return torch.einsum("i,j->ij", error, weight).mean() + error.mean()


class Embedded(Weighted):
    """As many frequencies as there are samples."""

    def loss(self, error, weight):
        frequencies = torch.linspace(1, 2, 8)
        angle = column(weight, 2)
        phases = frequencies * angle
        return (error + phases.mean()).mean()


class Constant(Weighted):
    def loss(self, error, weight):
        ones = column(torch.ones_like(weight), 2)
        both = error * ones
        return both.mean()


class Mapped(Weighted):
    """Multiplies what vmap hides: there is nothing to look at."""

    def loss(self, error, weight):
        def one(factor):
            other = column(weight, 2)
            return (error * factor * other).mean()

        return torch.func.vmap(one)(torch.ones(8)).mean()


def batch():
    return torch.randn(8, 3, 4), torch.randint(0, 20, (8,))


def finding(kind):
    contract = Contract(model=kind, batch=(batch(), None), loss=lambda output, _=None: output)
    return next(iter(contract.check(["loss-shapes"]).findings))


@pytest.mark.parametrize("kind", [AsTheSignal, InTwoSteps, Divided])
def test_each_weight_meets_every_sample(kind):
    found = finding(kind)
    assert (found.status, found.code) == ("violated", "loss-broadcast"), found
    assert found.location.text.endswith("# HERE"), found


@pytest.mark.parametrize(
    "kind",
    [
        Aligned, BothColumns, Deliberate, Kernel, Contrast, Hardest, OffDiagonal, Einsum, Embedded, Constant,
        Mapped,
    ],
)  # fmt: skip
def test_no_weight_meets_another_sample_by_mistake(kind):
    assert finding(kind).status in ("passed", "not-applicable"), finding(kind)


@pytest.mark.parametrize("wrong", [True, False])
def test_within_a_step(wrong):
    def step(model, optimizer, inputs, targets):
        x, confidence = inputs
        error = F.mse_loss(model(x), targets, reduction="none").mean(1)
        weight = confidence if wrong else confidence[:, 0]
        loss = (error * weight).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(4, 2)

        def forward(self, x, confidence=None):
            return self.body(x)

    contract = Contract(
        model=Pair,
        batch=((torch.randn(8, 4), 0.1 + torch.rand(8, 1)), torch.randn(8, 2)),
        train_step=step,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    )
    found = [f for f in contract.check(["step-losses"]).findings if f.code == "loss-broadcast"]
    assert bool(found) == wrong


def test_a_loss_that_vmap_hides():
    class Adapted(nn.Module):
        """Takes a loss for each task by vmap, as a model that adapts to each does."""

        def __init__(self):
            super().__init__()
            self.body = nn.Linear(4, 4)

        def forward(self, x, t):
            return torch.func.vmap(lambda one: F.mse_loss(self.body(one), one))(x).mean()

    assert finding(Adapted).status == "not-applicable", finding(Adapted)
