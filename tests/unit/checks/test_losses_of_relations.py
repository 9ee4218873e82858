"""Losses that compare samples with each other, take indices, or stand far from their targets are read as what they are."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, Labels

LOSSES = ["loss-shapes", "target-ownership", "target-alignment", "loss-sign", "descent"]


def net():
    return nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 6))


def told(loss, targets, model=net, sizes=(4, 12)):
    contract = Contract(model=model, inputs="B 5", sizes={"B": sizes}, targets=targets, loss=loss)
    found = contract.check(LOSSES).findings
    return [(f.check, f.code) for f in found if f.status in ("violated", "suspicious", "error")]


def of_one_kind(embedded, kinds):
    """Draws samples of one kind together, against all others."""
    z = F.normalize(embedded, dim=1)
    alone = torch.eye(len(z), dtype=torch.bool)
    logs = (z @ z.T / 0.3).masked_fill(alone, float("-inf")).log_softmax(1)
    alike = (kinds[:, None] == kinds) & ~alone
    return -(logs.masked_fill(~alike, 0.0).sum(1) / alike.sum(1).clamp(min=1)).mean()


def to_means(embedded, kinds):
    """Classifies samples by the mean of each class in the batch."""
    picked = F.one_hot(kinds, 3).to(embedded)
    means = picked.T @ embedded / picked.sum(0).clamp(min=1)[:, None]
    return F.cross_entropy(-torch.cdist(embedded, means).square(), kinds)


@pytest.mark.parametrize(
    ("loss", "classes"), [(of_one_kind, 2), (to_means, 3), (F.multi_margin_loss, 6)]
)
def test_losses_of_pairs_groups_and_indices(loss, classes):
    assert told(loss, Labels("B", classes=classes)) == []


class Above(nn.Module):
    """Starts far above what it is fitted to."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(5, 1)
        nn.init.constant_(self.net.bias, 25.0)

    def forward(self, x):
        return self.net(x)[:, 0]


@pytest.mark.parametrize("loss", [F.l1_loss, F.smooth_l1_loss])
def test_outputs_above_all_targets(loss):
    assert told(loss, "B", model=Above) == []


def test_a_fit_that_is_cut_far_from_the_targets_is_told():
    found = told(lambda o, y: (o.detach() - y).abs().mean() + 1e-3 * o.sum(), "B", model=Above)
    assert ("target-ownership", "gradient-without-targets") in found


def test_a_batch_whose_targets_are_all_ignored():
    contract = Contract(
        model=lambda: nn.Linear(5, 3),
        batch=((torch.randn(6, 5),), torch.full((6,), -100)),
        loss=F.cross_entropy,
    )
    assert [f for f in contract.check(["descent"]).findings if f.status == "error"] == []
