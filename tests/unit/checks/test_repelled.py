"""A loss that is highest where an output meets its target pushes it away; comparisons of other kinds do not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_torchcheck import Contract

SIZES = torch.tensor([[0.5, -0.4], [-0.7, 0.3], [0.9, -0.8], [0.2, 0.6], [-0.3, -0.5], [0.4, -0.9]])


def relative(output: Tensor, target: Tensor) -> Tensor:
    error = (output - target).abs()
    scale = target  # signed
    return (error / scale).mean()


def weighted(output: Tensor, target: Tensor) -> Tensor:
    return (target * (output - target).square()).mean()


def check(loss: Any, targets: Tensor = SIZES) -> Any:
    batch = ((torch.randn(6, 4, generator=torch.Generator().manual_seed(0)),), targets)
    return Contract(model=lambda: nn.Linear(4, 2), batch=batch, loss=loss).check(["loss-sign"])


@pytest.mark.parametrize(
    ("loss", "line"),
    [(relative, "scale = target  # signed"), (weighted, "return (target * (output - target).square()).mean()")],
)  # fmt: skip
def test_an_error_scaled_by_a_signed_target_is_told(loss: Any, line: str) -> None:
    (found,) = check(loss).failing
    assert (found.status, found.code) == ("violated", "loss-sign")
    assert "every negative target" in found.summary
    assert found.location.text == line


def policy(output: Tensor, advantage: Tensor) -> Tensor:
    return -(output.log_softmax(-1) * advantage).mean()


def hinge(output: Tensor, target: Tensor) -> Tensor:
    return F.relu(1 - output * target.sign()).mean()


def magnitude(output: Tensor, target: Tensor) -> Tensor:
    return ((output - target).abs() / target.abs().clamp(min=0.05)).mean()


def labelled(output: Tensor, target: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(output, (target > 0).float())


def counted(output: Tensor, target: Tensor) -> Tensor:
    return F.poisson_nll_loss(output, target.abs())


def aligned(output: Tensor, target: Tensor) -> Tensor:
    return -F.cosine_similarity(output, target).mean()


@pytest.mark.parametrize(
    "loss",
    [
        F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.soft_margin_loss, magnitude, policy, hinge,
        labelled, counted, aligned,
    ],
)  # fmt: skip
def test_losses_that_pull_or_compare_otherwise_pass(loss: Any) -> None:
    assert not [f for f in check(loss).findings if f.status == "violated"]
