"""A target that a loss computes with has an effect on it; one that the loss leaves alone may be for something else."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract

G = torch.Generator().manual_seed(3)
X, Y = torch.randn(6, 5, generator=G), torch.randint(4, (6,), generator=G)
WEIGHT = torch.rand(6, generator=G) + 0.5


def each(output, targets):
    return F.cross_entropy(output, targets["label"], reduction="none")


def dropped(output, targets):
    loss = each(output, targets)
    torch.mul(loss, targets["weight"])
    return loss.mean()


def bound_again(output, targets):
    loss = each(output, targets)
    total = (loss * targets["weight"]).sum()
    total = loss.sum()
    return total / len(loss)


def weighted(output, targets):
    loss = each(output, targets)
    loss.mul_(targets["weight"])
    return loss.mean()


def untouched(output, targets):
    return each(output, targets).mean()


def only_watched(output, targets):
    heaviest = targets["weight"].argmax()  # noqa: F841
    return each(output, targets).mean()


def findings(loss):
    contract = Contract(
        model=lambda: nn.Sequential(nn.Linear(5, 8), nn.GELU(), nn.Linear(8, 4)),
        batch=((X,), {"label": Y, "weight": WEIGHT}),
        loss=loss,
    )
    return [f for f in contract.check(["target-ownership"]).findings if f.status != "passed"]


@pytest.mark.parametrize(
    ("loss", "text"),
    [
        (dropped, 'torch.mul(loss, targets["weight"])'),
        (bound_again, 'total = (loss * targets["weight"]).sum()'),
    ],
)
def test_a_target_whose_use_is_lost(loss, text):
    (found,) = findings(loss)
    assert (found.status, found.code) == ("violated", "targets-ignored")
    assert found.location.text == text
    assert found.culprits[0].name == "y['weight']"


@pytest.mark.parametrize("loss", [weighted, untouched, only_watched])
def test_targets_that_are_used_or_not_meant_to_be(loss):
    assert not findings(loss)
