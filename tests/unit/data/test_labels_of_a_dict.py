"""Class 0 of labels that belong to boxes is the background; other labels that start at one are told."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import Dataset

from pytest_torchcheck import Contract


class Marked(Dataset[Any]):
    """Scenes whose objects have a kind from 1 to 4, with or without their boxes."""

    def __init__(self, boxes: bool, flat: bool = False) -> None:
        self.boxes, self.flat = boxes, flat

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        source = torch.Generator().manual_seed(index)
        corners = torch.rand(index % 5, 2, generator=source)
        kinds = 1 + torch.randint(0, 4, (index % 5,), generator=source)
        named: dict[str, Any] = {"labels": kinds}
        if self.boxes:
            named["where"] = torch.cat([corners, corners + 0.5], 1)
        scene = torch.rand(3, 6, 6, generator=source)
        return {"scene": scene, **named} if self.flat else (scene, named)


def _codes(**how: bool) -> list[str]:
    return [f.code for f in Contract(dataset=Marked(**how)).check(["dataset-labels"]).findings]


def test_labels_from_one_of_boxes() -> None:
    assert _codes(boxes=True) == ["held"]
    assert "label-one-based" not in _codes(boxes=True, flat=True)


def test_labels_from_one_of_nothing_else() -> None:
    assert _codes(boxes=False) == ["label-one-based"]
