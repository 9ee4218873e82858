"""A constant that a loss spreads along the axis of the targets in place of that of the outputs."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract

N = 7
LEVELS = (torch.arange(N) + 0.5) / N


def pairs(outputs, targets):
    return targets[:, None, :] - outputs[:, :, None]


def huber(error):
    return F.smooth_l1_loss(error, torch.zeros_like(error), reduction="none")


def quantiles(outputs, targets):
    error = pairs(outputs, targets)
    return ((LEVELS[:, None] - (error.detach() < 0).float()).abs() * huber(error)).mean()


def turned(outputs, targets):
    error = pairs(outputs, targets)
    below = (error.detach() < 0).float()
    return ((LEVELS - below).abs() * huber(error)).mean()  # HERE


def turned_weights(outputs, targets):
    return (huber(pairs(outputs, targets)) * LEVELS.square()).mean()  # HERE


def same_weights(outputs, targets):
    return (huber(pairs(outputs, targets)) * LEVELS.mean()).mean()


def by_place(outputs, targets):
    """Each output has one target; later ones count more."""
    return (huber(targets - outputs) * LEVELS).mean()


def reordered(outputs, targets):
    order = torch.tensor([3, 0, 6, 1, 5, 2, 4])
    return (huber(targets[:, order] - outputs) * LEVELS).mean()


def found(loss):
    torch.manual_seed(0)
    contract = Contract(
        model=lambda: nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, N)),
        inputs="B 4",
        batch=((torch.randn(9, 4),), 2 * torch.randn(9, N)),
        sizes={"B": (2, 9)},
        loss=loss,
    )
    return [f for f in contract.check("target-alignment").findings if f.code == "target-misplaced"]


@pytest.mark.parametrize("loss", [turned, turned_weights])
def test_a_constant_along_the_targets_is_named(loss):
    (finding,) = found(loss)
    assert finding.location.text.endswith("# HERE")
    assert f"spreads a constant [{N}] along dimension 2 of [9, {N}, {N}]" in finding.cause


@pytest.mark.parametrize("loss", [quantiles, same_weights, by_place])
def test_constants_along_the_outputs_and_weights_by_place_pass(loss):
    assert not found(loss)


def test_targets_in_another_order_are_told_as_before():
    (finding,) = found(reordered)
    assert "constant" not in finding.cause
