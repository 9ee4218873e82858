"""Windows that reach past the end of a series: what holds their bounds is blamed, not what they are cut from."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch.utils.data import Dataset

from pytest_torchcheck import Contract

GENERATOR = torch.Generator().manual_seed(0)
SERIES = [torch.rand(length, generator=GENERATOR) for length in (11, 17, 9, 14)]
WIDTH = 5


class Windows(Dataset):
    def __init__(self):
        self.tracks, self.spans = SERIES, []
        for track, values in enumerate(SERIES):
            last = len(values) - WIDTH + 3  # too many
            self.spans.extend((track, first) for first in range(0, max(last, 0), 2))

    def __len__(self):
        return len(self.spans)

    def __getitem__(self, i):
        track, first = self.spans[i]
        values, end = self.tracks[track], first + WIDTH
        return values[first:end], i


class Chosen(Windows):
    def __init__(self, padded=True):
        self.tracks, self.spans = SERIES, []
        for track, values in enumerate(SERIES):
            if padded:
                last = len(values) - WIDTH + 3  # too many
            else:
                last = len(values)  # enough
                last -= WIDTH
            for first in range(last):  # range
                self.spans.append((track, first))


class Table(Dataset):
    def __init__(self, over=3):
        self.values = torch.rand(40, generator=GENERATOR)
        self.firsts = torch.arange(0, 40 - WIDTH + over, 3)  # firsts

    def __len__(self):
        return len(self.firsts)

    def __getitem__(self, i):
        # the longest start last would be the end of the data, not of a table
        first = self.firsts[len(self.firsts) - 1 - i]
        return self.values[first : first + WIDTH], i


class Uncounted(Dataset):
    def __init__(self):
        self.tracks = SERIES

    def __len__(self):
        return 32

    def __getitem__(self, i):
        values, first = self.tracks[i % 4], i // 4
        return values[first : first + WIDTH], i


def told(dataset):
    report = Contract(dataset=dataset, loader={"batch_size": 4}).check(["samples-valid"])
    (found,) = (f for f in report.findings if f.code == "samples-do-not-stack")
    assert "tensor(" not in str(found)
    return found


def line(owner, text):
    lines, start = inspect.getsourcelines(owner)
    (found,) = [start + i for i, each in enumerate(lines) if text in each]
    return found


def cited(found):
    return {c.name: c.location.line for c in found.culprits if c.location}


def test_the_assignment_of_what_a_table_ends_at():
    found = told(Windows())
    assert found.location.line == line(Windows, "# too many")
    assert cited(found)["self.spans"] == line(Windows, "self.spans.extend")
    assert "self.tracks" not in cited(found)
    assert "self.spans holds an entry that leaves no room" in found.cause
    assert found.cause.endswith("__init__ makes it")


def test_of_two_branches_both_are_named():
    found = told(Chosen())
    assert found.location.line == line(Chosen, "# range")
    lines = {c.location.line for c in found.culprits if c.location}
    assert {line(Chosen, "# too many"), line(Chosen, "# enough")} <= lines


def test_a_table_of_numbers_in_a_tensor():
    found = told(Table())
    assert found.location.line == line(Table, "# firsts")
    assert "self.firsts" in cited(found)
    assert "self.values" not in cited(found)


def test_what_is_cut_is_not_blamed_where_no_table_holds_the_bounds():
    found = told(Uncounted())
    assert "self.tracks" not in cited(found)
    assert found.location.line == line(Uncounted, "return values[first")


@pytest.mark.parametrize("dataset", [Chosen(padded=False), Table(over=1)], ids=["list", "tensor"])
def test_tables_that_end_in_time(dataset):
    report = Contract(dataset=dataset, loader={"batch_size": 4}).check(["samples-valid"])
    assert report.ok, report
