"""A buffer that serves every sample: the line that hands it out, and the line that fills it."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from pytest_torchcheck import Contract


class Base(Dataset):
    def __init__(self):
        self.rows = np.random.RandomState(0).randn(12, 6)
        self.scratch = np.zeros(6, dtype="float32")
        self.record = {}

    def __len__(self):
        return 12


class HandedOutByAHelper(Base):
    def decoded(self, i):
        out = self.scratch
        out[:] = self.rows[i]  # FILLS
        return out

    def __getitem__(self, i):
        signal = torch.as_tensor(self.decoded(i))  # HANDS OUT
        label = i % 3
        return signal, label


class OneDict(Base):
    def __getitem__(self, i):
        self.record["x"], self.record["y"] = self.rows[i], i % 3  # FILLS
        return self.record  # HANDS OUT


class Stage:
    """Fills one buffer for all samples, and returns a tensor of its memory."""

    def __init__(self):
        self.kept = np.zeros(6, dtype="float32")

    def __call__(self, row):
        np.subtract(row, row.mean(), out=self.kept, casting="unsafe")  # FILLS
        return torch.from_numpy(self.kept)  # HANDS OUT


class HandedOutByAStage(Base):
    def __init__(self):
        super().__init__()
        self.stages = [Stage()]

    def __getitem__(self, i):
        row = self.rows[i]
        for stage in self.stages:
            row = stage(row)
        return row, i % 3


class Copied(HandedOutByAHelper):
    def __getitem__(self, i):
        return torch.tensor(self.decoded(i)), i % 3


class NewDict(Base):
    def __getitem__(self, i):
        self.record["x"], self.record["y"] = self.rows[i], i % 3
        return dict(self.record)


def marked(cls, word):
    lines, start = inspect.getsourcelines(cls)
    return next(start + i for i, text in enumerate(lines) if word in text)


@pytest.mark.parametrize(("made", "name"), [(HandedOutByAHelper, "scratch"), (OneDict, "record")])
def test_the_lines_that_fill_and_hand_out_the_buffer(made, name):
    (found,) = Contract(dataset=made()).check(["samples-unchanged"]).findings
    assert (found.status, found.code) == ("violated", "sample-overwritten")
    assert found.culprits[0].name == name
    assert found.location.line == marked(made, "# HANDS OUT")
    assert marked(made, "# FILLS") in {one.location.line for one in found.culprits if one.location}


@pytest.mark.parametrize("made", [Copied, NewDict])
def test_copies_are_right(made):
    (found,) = Contract(dataset=made()).check(["samples-unchanged"]).findings
    assert found.status == "passed"


def test_a_function_that_returns_the_sample_itself_hands_it_out():
    (found,) = Contract(dataset=HandedOutByAStage()).check(["samples-unchanged"]).findings
    assert (found.status, found.code) == ("violated", "sample-overwritten")
    assert found.location.line == marked(Stage, "# HANDS OUT")
