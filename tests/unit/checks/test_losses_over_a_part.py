"""Losses over some of the samples, among them losses that take out the mean of what they compare."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract


def centred(output, target):
    output, target = (t - t.mean(1, keepdim=True) for t in (output, target))
    fit = (output * target).sum(1) / (output.norm(dim=1) * target.norm(dim=1) + 1e-6)
    return 1 - fit


def every(output, target):
    return centred(output, target).mean()


def hardest(output, target):
    return centred(output, target).topk(2).values.mean()


def easiest(output, target):
    return centred(output, target).topk(3, largest=False).values.mean()


def half(output, target):
    errors = centred(output, target)
    kept = errors[: len(errors) // 2]  # HERE
    return kept.mean()


def lowest(output, target):
    both = torch.stack(
        [centred(output, target), F.mse_loss(output, target, reduction="none").mean(1)]
    )
    least = both.amin(dim=1)  # HERE
    return least.mean()


@pytest.mark.parametrize("loss", [every, hardest, easiest, half, lowest])
def test_every_sample_counts(loss):
    torch.manual_seed(0)
    contract = Contract(
        model=lambda: nn.Linear(4, 6),
        inputs="B 4",
        batch=((torch.randn(5, 4),), torch.randn(5, 6)),
        loss=loss,
    )
    ownership, sign = contract.check(["target-ownership", "loss-sign"]).findings[:2]
    assert "violated" not in (sign.status if sign.check == "loss-sign" else ownership.status)
    (found,) = [f for f in (ownership, sign) if f.check == "target-ownership"]
    assert found.status == ("violated" if loss in (half, lowest) else "passed")
    assert found.status == "passed" or found.location.text.endswith("# HERE")
