"""Where a loss counts ignored targets, the operation that merges their positions with the others is named."""

from __future__ import annotations

from typing import Any

import pytest
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
        assert [c.name for c in found.culprits] == ["loss", "mean"]


def test_a_loss_over_flattened_positions_is_named() -> None:
    (found,) = check(
        lambda o, t: F.cross_entropy(o.flatten(0, 1), t.flatten().clamp(min=0))
    ).failing
    assert [c.name for c in found.culprits] == ["loss", "cross_entropy"]
