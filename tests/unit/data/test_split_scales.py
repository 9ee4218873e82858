"""Values of two splits that are of other sizes are found; draws, offsets, numbers and identifiers are not."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pytest_torchcheck import Contract


class Records(torch.utils.data.Dataset[Any]):
    """Records of a few readings, a time and a label."""

    def __init__(self, start: int, how: str) -> None:
        self.start, self.how = start, how

    def __len__(self) -> int:
        return 30

    def __getitem__(self, place: int) -> dict[str, Any]:
        g = torch.Generator().manual_seed(self.start + place)
        x = torch.randn(3, 5, generator=g)
        if self.how == "volts":
            x = x * 1e-3
        elif self.how == "heavy":
            x = x.exp().pow(3)
        elif self.how == "bytes":
            x = (x * 40 + 128).clamp(0, 255).to(torch.uint8)
        return {"x": x, "time": float(10 ** (self.start // 100)), "label": place % 2}


@pytest.mark.parametrize(
    ("train", "held", "found"),
    [
        ("plain", "volts", True),
        ("bytes", "plain", True),
        ("plain", "plain", False),
        ("heavy", "heavy", False),
    ],
)
def test_values_of_two_splits_are_of_one_size(train: str, held: str, *, found: bool) -> None:
    parts = {"train": Records(0, train), "eval": Records(500, held)}
    findings = Contract(dataset=parts).check(["split-hygiene"]).findings
    told = [(f.status, f.code) for f in findings if f.status in ("violated", "suspicious")]
    assert told == ([("suspicious", "split-scale")] if found else [])
