"""Labels of both kinds have a part in a loss: no one output is perfect for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from pytest_torchcheck import Contract

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


def _only_absent(p: Tensor, y: Tensor) -> Tensor:
    """Absent labels alone are in it: a model that says no to everything is perfect."""
    return -((1 - y) * torch.log1p(-p.sigmoid().clamp(max=1 - 1e-7))).mean()


def _weighted(p: Tensor, y: Tensor) -> Tensor:
    return nn.functional.binary_cross_entropy_with_logits(p, y, weight=1 + 3 * y)


def _ranked(p: Tensor, y: Tensor) -> Tensor:
    """Scores of present labels exceed those of absent ones by a margin: a constant does not."""
    gaps = 1 - p[:, :, None] + p[:, None, :]
    return (gaps.relu() * y[:, :, None] * (1 - y[:, None, :])).mean()


@pytest.mark.parametrize(
    ("loss", "red"), [(_only_absent, True), (_weighted, False), (_ranked, False)]
)
def test_no_output_suits_all(loss: Callable[[Tensor, Tensor], Tensor], *, red: bool) -> None:
    g = torch.Generator().manual_seed(6)
    report = Contract(
        model=lambda: nn.Sequential(nn.Conv1d(2, 3, 3), nn.Flatten(), nn.Linear(12, 4)),
        batch=((torch.randn(7, 2, 6, generator=g),), (torch.rand(7, 4, generator=g) < 0.5).float()),
        loss=loss,
    ).check(["target-ownership"])  # fmt: skip
    assert ("targets-ignored" in {f.code for f in report.findings}) is red
