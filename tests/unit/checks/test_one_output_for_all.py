"""Labels of both kinds have a part in a loss: no one output is perfect for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from pytest_torchcheck import Contract, Labels

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


def _share(weights: list[float], *, frames: bool) -> Callable[[Tensor, Tensor], Tensor]:
    def loss(p: Tensor, y: Tensor) -> Tensor:
        likely = p.log_softmax(1).gather(1, y.unsqueeze(1)).squeeze(1)
        weight = torch.tensor(weights)[y]
        return -(likely * weight).mean(1).sum() if frames else -(likely * weight).sum()

    return loss


@pytest.mark.parametrize(
    ("weights", "red"),
    [([0.0, 0.0, 2.0, 0.0], True), ([0.0, 1.0, 2.0, 0.0], False), ([1.0, 1.0, 1.0, 1.0], False)],
)
@pytest.mark.parametrize("frames", [False, True])
def test_one_class_is_not_all_that_counts(weights: list[float], *, red: bool, frames: bool) -> None:
    g = torch.Generator().manual_seed(2)
    tail = [nn.Conv1d(3, 4, 3)] if frames else [nn.Flatten(), nn.Linear(18, 4)]
    labels = torch.randint(0, 4, (9, 4) if frames else (9,), generator=g)
    report = Contract(
        model=lambda: nn.Sequential(*tail),
        batch=((torch.randn(9, 3, 6, generator=g),), labels),
        loss=_share(weights, frames=frames),
    ).check(["target-ownership"])
    assert ("targets-ignored" in {f.code for f in report.findings}) is red


@pytest.mark.parametrize("weights", [[0.0, 3.0, 0.0, 0.0], [0.0, 3.0, 3.0, 3.0]])
def test_classes_that_a_batch_happens_to_lack_are_tried(weights: list[float]) -> None:
    report = Contract(
        model=lambda: nn.Linear(3, 4),
        inputs="B 3",
        targets=Labels("B", classes=4),
        sizes={"B": (5, 9)},
        loss=lambda p, y: _share(weights, frames=False)(p, y),
    ).check(["target-ownership"])
    red = weights[-1] == 0
    assert ("targets-ignored" in {f.code for f in report.findings}) is red
