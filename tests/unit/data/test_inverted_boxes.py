"""Boxes that a random flip mirrors: with x1 and x2 in the old order, exchanged, or in forms that have no corners."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from pytest_torchcheck import Contract
from pytest_torchcheck.promises import RandomAugmentation

SIZE = 48


def inverted(rows):
    rows = rows.clone()
    rows[..., 0::2] = SIZE - rows[..., 0::2]  # inverted
    return rows


def exchanged(rows):
    rows = rows.clone()
    rows[..., 0::2] = SIZE - rows[..., [2, 0]]
    return rows


def centred(rows):
    centre, size = (rows[..., :2] + rows[..., 2:]) / 2, rows[..., 2:] - rows[..., :2]
    centre[..., 0] = SIZE - centre[..., 0] if torch.rand(()) < 0.5 else centre[..., 0]
    return torch.cat([centre, size], dim=-1)


def sized(rows):
    first, size = rows[..., :2].clone(), rows[..., 2:] - rows[..., :2]
    if torch.rand(()) < 0.5:
        first[..., 0] = SIZE - first[..., 0] - size[..., 0]
    return torch.cat([first, size], dim=-1)


class Boxes(Dataset):
    """Reads ``boxes`` of each sample, mirrored at random."""

    def __init__(self, flip, chance=0.5, tall=False, many=3, count=10, kind=torch.float32):
        generator = torch.Generator().manual_seed(1)
        first = torch.rand(count, many, 2, generator=generator) * SIZE / 2
        size = torch.rand(count, many, 2, generator=generator) * SIZE / 2 + 4
        if tall:  # heights are above all other numbers of a box
            first[..., 1], size[..., 1] = first[..., 1] / 10, SIZE * 0.9
        self.rows = torch.cat([first, first + size], dim=-1).to(kind)
        self.flip, self.chance = flip, chance

    def __len__(self):
        return len(self.rows)

    def image(self):
        return torch.rand(3, 4, 4)

    def __getitem__(self, i):
        boxes = self.rows[i]
        if torch.rand(()) < self.chance:
            boxes = self.flip(boxes)
        return self.image(), boxes, i % 3


class Padded(Boxes):
    """The same in NumPy, in a dict, with rows of zeros behind the boxes."""

    def __getitem__(self, i):
        rows = np.zeros((6, 4), dtype=np.int32)
        rows[:3] = self.rows[i].numpy()
        target = {"gt_bboxes": rows, "label": i % 3}
        if torch.rand(()) < self.chance:
            target["gt_bboxes"][:, [0, 2]] = SIZE - target["gt_bboxes"][:, [0, 2]]  # padded
        return {"image": self.image(), **target}


class Upward(Boxes):
    """Corners of which the second lies above the first, always."""

    def __getitem__(self, i):
        image, boxes, label = super().__getitem__(i)
        return image, boxes[..., [0, 3, 2, 1]], label


class Spans(Boxes):
    def __getitem__(self, i):
        spans = self.rows[i]
        if torch.rand(()) < self.chance:
            spans = self.flip(spans)
        return self.image(), spans, i % 3


def told(dataset):
    report = Contract(dataset=dataset, promises=[RandomAugmentation()]).check(["dataset-labels"])
    return [f for f in report.findings if f.code == "boxes-inverted"]


def line(owner, text):
    lines, start = inspect.getsourcelines(owner)
    (found,) = [start + i for i, each in enumerate(lines) if text in each]
    return found


@pytest.mark.parametrize("kind", [torch.float32, torch.int64])
@pytest.mark.parametrize("many", [1, 3])
def test_corners_in_the_old_order(kind, many):
    (found,) = told(Boxes(inverted, many=many, kind=kind))
    assert found.status == "violated"
    assert found.location.line == line(inverted, "# inverted")
    assert found.culprits[0].name == "boxes, sample[1]"
    assert "x1 > x2" in found.summary


def test_rows_of_zeros_are_left_out():
    (found,) = told(Padded(None))
    assert found.location.line == line(Padded, "# padded")
    assert found.culprits[0].name == "sample['gt_bboxes']"


@pytest.mark.parametrize("tall", [False, True])
@pytest.mark.parametrize("many", [1, 3])
@pytest.mark.parametrize(
    ("flip", "chance"), [(exchanged, 0.5), (centred, 1.0), (sized, 1.0)], ids=["corners", "centre", "size"]
)  # fmt: skip
def test_other_forms_and_sound_flips(flip, chance, many, tall):
    assert not told(Boxes(flip, chance, tall, many))


def test_orders_that_never_change():
    assert not told(Boxes(inverted, chance=0.0))
    assert not told(Boxes(inverted, chance=1.0))
    assert not told(Upward(exchanged))


def test_a_few_boxes_are_not_enough():
    assert not told(Boxes(inverted, many=1, count=2))


def test_only_what_is_called_boxes():
    assert not told(Spans(inverted))
