"""A value of a sample that a helper of the dataset returns: the helper's line is named, where it can be told."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch.utils.data import Dataset

from pytest_torchcheck import Contract, Labels


class Rows(Dataset):
    def __init__(self):
        self.rows = torch.rand(12, 4)

    def __len__(self):
        return len(self.rows)

    def noted(self, i):
        self.last = i

    def other(self, i):
        return None

    def lookup(self, i):
        return None  # innermost

    def mask(self, i):
        self.noted(i)
        return self.lookup(i)


class InDict(Rows):
    def __getitem__(self, i):
        self.noted(i)
        other = self.other(i)
        return {"x": self.rows[i] if other is None else other, "mask": self.mask(i)}


class ByName(Rows):
    def __getitem__(self, i):
        self.other(i)
        mask = self.mask(i)
        return self.rows[i], mask


class ByKey(Rows):
    def __getitem__(self, i):
        sample = {"x": self.rows[i]}
        sample["mask"] = self.mask(i)
        return sample


class Itself(Rows):
    def __getitem__(self, i):
        other = self.mask(i)
        mask = None if other is None else other
        return self.rows[i], mask


def line(function, text):
    lines, start = inspect.getsourcelines(function)
    (found,) = [start + i for i, each in enumerate(lines) if text in each]
    return found


@pytest.mark.parametrize("made", [InDict, ByName, ByKey])
def test_a_none_that_a_helper_returns(made):
    (found,) = Contract(dataset=made(), loader={"batch_size": 4}).check(["samples-valid"]).causes
    assert found.code == "batch-not-collatable"
    assert found.location.line == line(Rows.lookup, "# innermost")
    assert "Rows.lookup" in found.cause


def test_a_none_of_its_own():
    (found,) = Contract(dataset=Itself(), loader={"batch_size": 4}).check(["samples-valid"]).causes
    assert found.location.line == line(Itself.__getitem__, "return")


class Cast(Rows):
    def __init__(self, cast):
        super().__init__()
        self.cast = cast

    def label(self, i):
        kind = torch.float64 if i % 6 == 5 else torch.float32
        return torch.tensor([1.0], dtype=kind)

    def __getitem__(self, i):
        label = self.label(i)
        return self.rows[i], label.clone() if self.cast else label


@pytest.mark.parametrize("cast", [False, True])
def test_a_dtype_that_varies(cast):
    report = Contract(dataset=Cast(cast), loader={"batch_size": 4}).check(["samples-valid"])
    (found,) = report.causes
    assert found.code == "sample-dtype-varies"
    last = line(Cast.__getitem__, "return") if cast else line(Cast.label, "return")
    assert found.location.line == last


class Counted(Rows):
    def class_of(self, i):
        return i % 4 + 1

    def __getitem__(self, i):
        return self.rows[i], self.class_of(i)


class Floats(Counted):
    def class_of(self, i):
        return torch.tensor(float(i % 4))


@pytest.mark.parametrize(
    ("made", "code", "text"),
    [(Counted, "label-range", "return"), (Floats, "label-dtype", "return")],
)
def test_a_label_that_a_helper_returns(made, code, text):
    contract = Contract(dataset=made(), targets=Labels(classes=4), loader={"batch_size": 4})
    (found,) = contract.check(["dataset-labels"]).causes
    assert found.code == code
    assert found.location.line == line(made.class_of, text)
    assert line(Counted.__getitem__, "return") in {c.location.line for c in found.culprits}
