"""Where a loss counts ignored targets, the operation that merges their positions with the others is named."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_torchcheck import Contract, Labels


def of_labels(output: Tensor, targets: Tensor, *, masked: bool) -> Tensor:
    logs = output.log_softmax(-1)
    kept = targets >= 0
    chosen = logs.gather(-1, targets.clamp(min=0)[..., None])[..., 0]
    hard = -(chosen * kept).sum() / kept.sum().clamp(min=1)
    flat = -logs.mean(-1)
    if masked:
        flat = flat * kept
    soft = flat.mean()  # every position
    return 0.9 * hard + 0.1 * soft


def check(loss: Any) -> Any:
    return Contract(
        model=lambda: nn.Linear(5, 4), inputs="B T 5", sizes={"B": 3, "T": 6},
        targets=Labels("B T", classes=4, ignore_index=-1), loss=loss,
    ).check(["ignored-targets"])  # fmt: skip


@pytest.mark.parametrize("masked", [True, False])
def test_the_mean_over_every_position_is_named(masked: bool) -> None:
    report = check(lambda output, targets: of_labels(output, targets, masked=masked))
    assert report.ok is masked
    for found in report.failing:
        assert found.location.text == "soft = flat.mean()  # every position"
        assert [c.name for c in found.culprits] == ["loss", "mean", "neg"]


def test_a_loss_over_flattened_positions_is_named() -> None:
    (found,) = check(
        lambda o, t: F.cross_entropy(o.flatten(0, 1), t.flatten().clamp(min=0))
    ).failing
    assert [c.name for c in found.culprits] == ["loss", "cross_entropy"]


@pytest.mark.parametrize("masked", [True, False])
def test_as_many_classes_as_positions_are_told_apart(masked: bool) -> None:
    def loss(output: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(output, targets if masked else targets.clamp(min=0), ignore_index=-1)

    report = Contract(
        model=lambda: nn.Linear(5, 6), inputs="B 5", sizes={"B": 6},
        targets=Labels("B", classes=6, ignore_index=-1), loss=loss,
    ).check(["ignored-targets"])  # fmt: skip
    assert report.ok is masked


class TwoViews(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(5, 12), nn.Linear(12, 4)
        self.other = nn.Linear(12, 4)

    def forward(self, x):
        hidden = torch.relu(self.body(x))
        return {"a": self.head(hidden), "b": self.other(hidden)}


def labelled(out, y):
    known = y != -7
    each = F.cross_entropy(out["a"], y.clamp(min=0), reduction="none")
    return (each * known).sum() / known.sum().clamp(min=1)


def with_agreement(out, y):
    return labelled(out, y) + F.mse_loss(out["a"].softmax(1), out["b"].softmax(1))


def one_label_too_many(out, y):
    each = F.cross_entropy(out["a"], y.clamp(min=0), reduction="none")
    return each.sum() / (y != -7).sum().clamp(min=1)


@pytest.mark.parametrize(
    ("loss", "status"),
    [(labelled, "passed"), (with_agreement, "suspicious"), (one_label_too_many, "violated")],
)
def test_a_term_that_does_not_read_the_targets_may_cover_ignored_ones(loss, status):
    y = torch.tensor([0, -7, 3, 1, -7, 2, 0, -7])
    report = Contract(
        model=TwoViews, batch=((torch.randn(8, 5),), y),
        targets=Labels(classes=4, ignore_index=-7), loss=loss,
    ).check(["ignored-targets"])  # fmt: skip
    assert [f.status for f in report.findings] == [status]
