"""Datasets that are put together and name their classes: which label a class has in each."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset

from pytest_torchcheck import Contract

NORTH = ["ash", "birch", "elm"] * 5
SOUTH = ["birch", "elm", "fir", "oak"] * 4


class Folder(Dataset):
    """As torchvision's ImageFolder: paths with labels, and the classes that the folder holds."""

    def __init__(self, names, classes=None, target_transform=None, site=None):
        self.classes = classes or sorted(set(names))
        self.class_to_idx = {name: label for label, name in enumerate(self.classes)}
        self.samples = [(f"data/{n}/{i}.png", self.class_to_idx[n]) for i, n in enumerate(names)]
        self.target_transform, self.site = target_transform, site

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        label = self.samples[index][1]
        label = self.target_transform(label) if self.target_transform else label
        image = torch.full((4,), index + 0.5)
        return (image, label) if self.site is None else (image, self.site, label)


class Listed(Dataset):
    """Names its classes by a list, and keeps labels in an array."""

    def __init__(self, names):
        self.classes = sorted(set(names))
        self.targets = np.array([self.classes.index(name) for name in names])

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, index):
        return torch.full((4,), float(index)), self.targets[index]


def joined():
    return ConcatDataset([Folder(NORTH), Folder(SOUTH)])


def to_common(names):
    own, common = sorted(set(names)), sorted({*NORTH, *SOUTH})
    return lambda label: common.index(own[label])


def told(dataset, **fields):
    report = Contract(dataset=dataset, **fields).check(["dataset-labels"])
    return [f for f in report.findings if f.code == "class-index-differs"]


@pytest.mark.parametrize(
    "dataset",
    [
        joined(),
        ConcatDataset([Listed(NORTH), Listed(SOUTH)]),
        ConcatDataset([Subset(Folder(NORTH), range(3, 12)), Folder(SOUTH)]),
    ],
)
def test_parts_that_count_their_own_classes(dataset):
    (found,) = told(dataset)
    assert found.status == "violated"
    assert "'birch' is label 1 in" in found.summary
    assert found.culprits[0].name in ("class_to_idx", "classes")


def test_splits_that_count_their_own_classes():
    (found,) = told({"train": Folder(NORTH), "eval": Folder(["birch", "elm"] * 5)})
    assert found.status == "violated"
    assert "label 1 in train: Folder and label 0 in eval: Folder" in found.summary
    lines, start = inspect.getsourcelines(Folder)
    made = next(start + i for i, text in enumerate(lines) if "self.class_to_idx =" in text)
    assert made in {one.location.line for one in found.culprits if one.location}


@pytest.mark.parametrize(
    "dataset",
    [
        ConcatDataset([Folder(n, sorted({*NORTH, *SOUTH})) for n in (NORTH, SOUTH)]),
        ConcatDataset([Folder(n, target_transform=to_common(n)) for n in (NORTH, SOUTH)]),
        ConcatDataset([Folder(NORTH), Folder(["fir", "oak"] * 4)]),  # no class in common
        ConcatDataset([Folder(NORTH), Folder(NORTH[::-1])]),
        {"train": Folder(NORTH), "eval": Subset(Folder(NORTH), range(6))},
    ],
)
def test_parts_that_agree(dataset):
    assert told(dataset) == []


def test_what_tells_the_parts_apart_makes_it_suspicious():
    (found,) = told(ConcatDataset([Folder(n, site=s) for s, n in enumerate((NORTH, SOUTH))]))
    assert found.status == "suspicious"


def test_labels_that_nothing_uses():
    model = torch.nn.Linear(4, 4)
    assert told(joined(), model=model, inputs="B 4") == []
