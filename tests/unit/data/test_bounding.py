"""A sample whose index is out of bounds: what the index was made of is named, with its values."""

from __future__ import annotations

import inspect

import torch
from torch.utils.data import Dataset

from pytest_torchcheck import Contract


class Clips(Dataset):
    def __init__(self, strict=False):
        self.clips = torch.rand(3, 7, 4)
        self.width = 3
        if strict:
            self.starts = self.clips.shape[1] - 2
        else:
            self.starts = self.clips.shape[1] - 1  # one too many

    def __len__(self):
        return len(self.clips) * self.starts

    def frame(self, clip, place):
        return self.clips[clip][place]

    def __getitem__(self, i):
        clip, start = divmod(i, self.starts)
        frames = [self.frame(clip, start + k) for k in range(self.width)]
        return torch.stack(frames), i


class Table(Dataset):
    def __init__(self):
        self.rows = [torch.rand(5, 2) for _ in range(4)]
        self.windows = []
        for row in range(4):
            for start in range(5):
                self.windows.append((row, start))  # too many

    def __len__(self):
        return len(self.windows)

    def __getitem__(self, i):
        row, start = self.windows[i]
        return self.rows[row][start] - self.rows[row][start + 1], i


class Named(Dataset):
    def __init__(self):
        self.names = ["a", "b", "c", "a", "b"]
        self.classes = {"a": 0, "b": 1}

    def __len__(self):
        return 5

    def __getitem__(self, i):
        name = self.names[i]
        return torch.rand(3), self.classes[name]


class Last(Dataset):
    def __init__(self):
        self.rows = torch.rand(9, 3)

    def __len__(self):
        return 11

    def __getitem__(self, i):
        return self.rows[i]


def told(dataset):
    (found,) = Contract(dataset=dataset).check(["samples-valid"]).causes
    assert found.code == "sample-raises"
    return found, [(c.name, c.detail, c.location.line) for c in found.culprits]


def line(function, text):
    lines, start = inspect.getsourcelines(function)
    (found,) = [start + i for i, each in enumerate(lines) if text in each]
    return found


def test_a_number_that_is_computed_once():
    found, culprits = told(Clips())
    number = ("self.starts", "is 6, is read for start = 5", line(Clips.__init__, "# one too many"))
    assert culprits[1] == number
    assert ("start", "is 5", line(Clips.__getitem__, "divmod")) in culprits
    assert "so do 11, 17, each 6 apart" in found.observed
    assert "self.starts" in found.fix


def test_a_table_that_is_filled_once():
    found, culprits = told(Table())
    assert culprits[1] == (
        "self.windows",
        "is read for start = 4",
        line(Table.__init__, "# too many"),
    )
    assert "so do 9, 14, 19, each 5 apart" in found.observed


def test_a_key_that_is_missing():
    _, culprits = told(Named())
    assert ("name", "is 'c'", line(Named.__getitem__, "name = ")) in culprits
    assert ("self.classes", "has 2 entries", line(Named.__init__, "self.classes")) in culprits


def test_only_the_last_samples():
    found, culprits = told(Last())
    assert [name for name, _, _ in culprits][1] == "__len__"
    assert ("self.rows", "has 9 entries", line(Last.__init__, "self.rows")) in culprits
    assert "promises more" in found.cause
