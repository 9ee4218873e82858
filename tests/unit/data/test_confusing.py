"""A cache with one key for several samples, and caches whose entries are shared on purpose."""

from __future__ import annotations

import inspect
import random
from typing import ClassVar

import pytest
import torch
from torch.utils.data import Dataset

from pytest_torchcheck import Contract


class Base(Dataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(20, 5, generator=generator)
        self.y = [i % 4 for i in range(20)]
        self.cache = {}
        self.slots = [None] * 20
        self.rng = torch.Generator().manual_seed(0)

    def __len__(self):
        return 20


class WrongPlace(Base):
    """A list of slots, of which two samples each share one; augmented after the cache."""

    def __getitem__(self, i):
        place = i // 2  # BUG
        if self.slots[place] is None:
            self.slots[place] = self.x[i].exp()
        return self.slots[place] + torch.rand(5), self.y[i]


class WrongKey(Base):
    def kept(self, key, i):
        return self.cache.setdefault(key, (self.x[i] * 2, self.y[i]))

    def __getitem__(self, i):
        key = f"sample{i % 7}"
        x, y = self.kept(key, i)  # BUG
        return x, y


_LOADED = {}


class WrongKeyOfAll(Base):
    """Keeps what was read in a dict of the module, for all objects of the class."""

    def __getitem__(self, i):
        key = i % 5  # BUG
        if key not in _LOADED:
            _LOADED[key] = self.x[i] * 2
        return _LOADED[key], self.y[i]


class WrongKeyOfClass(Base):
    loaded: ClassVar = {}

    def __getitem__(self, i):
        key = i % 5  # BUG
        if key not in self.loaded:
            self.loaded[key] = self.x[i] * 2
        return self.loaded[key], self.y[i]


class Shards(Base):
    """An entry holds four samples, of which each has its own."""

    def __getitem__(self, i):
        if i // 4 not in self.cache:
            self.cache[i // 4] = self.x[4 * (i // 4) : 4 * (i // 4) + 4] * 2
        return self.cache[i // 4][i % 4], self.y[i]


class Prototypes(Base):
    """Drawn at the first reading of a class, then kept for all of its samples."""

    def __getitem__(self, i):
        if self.y[i] not in self.cache:
            self.cache[self.y[i]] = torch.randn(5)
        return self.cache[self.y[i]], self.y[i]


class OwnDraws(Prototypes):
    def __getitem__(self, i):
        if self.y[i] not in self.cache:
            self.cache[self.y[i]] = torch.randn(5, generator=self.rng)
        return self.cache[self.y[i]], self.y[i]


class Duplicates(Base):
    """Equal contents under one key, as links to one file are."""

    def __getitem__(self, i):
        if i % 5 not in self.cache:
            self.cache[i % 5] = self.x[i % 5] * 2
        return self.cache[i % 5], self.y[i]


class Logged(Base):
    """Keeps which samples were read last, and how often a class was."""

    def __getitem__(self, i):
        self.cache[self.y[i]] = self.cache.get(self.y[i], 0) + 1
        self.slots[0] = i
        return self.x[i] + random.random(), self.y[i]


class Anchors(Base):
    """The first sample read of a class serves as anchor of the class."""

    def __getitem__(self, i):
        return self.x[i], self.cache.setdefault(self.y[i], self.x[i]), self.y[i]


def told(dataset):
    report = Contract(dataset=dataset).check(["samples-unchanged"])
    assert dataset.cache == {}
    assert dataset.slots == [None] * 20
    assert _LOADED == WrongKeyOfClass.loaded == {}
    return [f for f in report.findings if f.code == "sample-confused"]


@pytest.mark.parametrize(
    ("made", "name"),
    [
        (WrongPlace, "slots"),
        (WrongKey, "cache"),
        (WrongKeyOfAll, "_LOADED"),
        (WrongKeyOfClass, "loaded"),
    ],
)
def test_one_key_for_two_samples(made, name):
    (found,) = told(made())
    assert found.status == "violated"
    assert found.culprits[0].name == name
    lines, start = inspect.getsourcelines(made)
    assert found.location.line == next(start + i for i, t in enumerate(lines) if "# BUG" in t)


@pytest.mark.parametrize("made", [Shards, Prototypes, OwnDraws, Duplicates, Logged])
def test_entries_that_are_shared_on_purpose(made):
    assert told(made()) == []


def test_what_stands_beside_an_array_of_its_own_is_suspicious():
    (found,) = told(Anchors())
    assert found.status == "suspicious"
