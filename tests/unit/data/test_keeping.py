"""Caches behind a random augmentation, which keep its first draw, and caches that do not."""

from __future__ import annotations

import functools
import inspect
import random

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset

from pytest_torchcheck import Contract
from pytest_torchcheck.promises import RandomAugmentation

LOADER = {"batch_size": 4, "num_workers": 0}


class Base(Dataset):
    def __init__(self):
        self.x = torch.rand(20, 3, 4, generator=torch.Generator().manual_seed(0))
        self.y = [i % 4 for i in range(20)]
        self.kept = {}
        self.rows = np.zeros((20, 3, 4), dtype="float32")
        self.done = np.zeros(20, dtype=bool)
        self.epoch = 0

    def __len__(self):
        return 20

    def augmented(self, x):
        return x + 0.1 * torch.randn(3, 4)


class KeptLater(Base):
    def load(self, i):
        if i in self.kept:
            return self.kept[i]
        x = self.augmented(self.x[i].exp())  # DRAWS
        self.kept[i] = (x, self.y[i])  # BUG
        return self.kept[i]

    def __getitem__(self, i):
        return self.load(i)


class KeptRows(Base):
    def __getitem__(self, i):
        if not self.done[i]:
            self.rows[i] = self.augmented(self.x[i]).numpy()  # BUG
            self.done[i] = True
        return torch.tensor(self.rows[i]), self.y[i]


class CachedMethod(Base):
    @functools.lru_cache(maxsize=None)  # noqa: B019, UP033  # BUG
    def load(self, i):
        return self.augmented(self.x[i])

    def __getitem__(self, i):
        return self.load(i), self.y[i]


class Small(Base):
    """Keeps few: most samples are drawn anew in the next epoch."""

    def __getitem__(self, i):
        if i not in self.kept:
            self.kept[i] = self.augmented(self.x[i])
        while len(self.kept) > 12:
            self.kept.pop(next(iter(self.kept)))
        return self.kept[i], self.y[i]


class Resampled(Base):
    """A method that the loop calls before every epoch draws anew."""

    def resample(self):
        self.kept = {}

    def __getitem__(self, i):
        if i not in self.kept:
            self.kept[i] = self.augmented(self.x[i])
        return self.kept[i], self.y[i]


class EpochAware(Base):
    def set_epoch(self, epoch):
        self.epoch = epoch
        self.kept.clear()

    def __getitem__(self, i):
        if i not in self.kept:
            self.kept[i] = self.augmented(self.x[i])
        return self.kept[i], self.y[i]


class SeededByEpoch(Base):
    def set_epoch(self, epoch):
        self.epoch = epoch

    def __getitem__(self, i):
        rng = np.random.default_rng((self.epoch, i))
        return self.x[i] + float(rng.random()), self.y[i]


class Right(Base):
    def __getitem__(self, i):
        if i not in self.kept:
            self.kept[i] = self.x[i].exp()
        return self.augmented(self.kept[i]), self.y[i]


class Seldom(Base):
    """Draws whether to flip, and flips one in a thousand."""

    def __getitem__(self, i):
        if i not in self.kept:
            self.kept[i] = self.x[i].exp() * torch.rand(1)
        x = self.kept[i]
        return (x.flip(0) if random.random() < 1e-3 else x), self.y[i]


def told(dataset, check="random-augmentation", **loader):
    promises = (RandomAugmentation(),) if check == "random-augmentation" else ()
    contract = Contract(dataset=dataset, loader={**LOADER, **loader}, promises=promises)
    (found,) = contract.check([check]).findings
    own = getattr(dataset, "dataset", dataset)
    assert own.kept == {}
    assert not own.done.any()
    return found


def marked(cls, word="# BUG"):
    lines, start = inspect.getsourcelines(cls)
    return next(start + i for i, text in enumerate(lines) if word in text)


@pytest.mark.parametrize(
    ("made", "name"), [(KeptLater, "kept"), (KeptRows, "rows"), (CachedMethod, "load")]
)
def test_a_cache_filled_after_the_augmentation(made, name):
    found = told(made())
    assert (found.status, found.code) == ("violated", "augmentation-fixed")
    assert found.culprits[0].name == name
    assert found.location.line == marked(made)
    if made is KeptLater:
        assert found.culprits[1].location.line == marked(made, "# DRAWS")
        assert told(Subset(made(), range(10))).code == "augmentation-fixed"


def test_workers_that_are_started_anew_lose_it():
    assert told(KeptLater(), num_workers=2).status == "passed"
    assert told(KeptLater(), num_workers=2, persistent_workers=True).status == "violated"


@pytest.mark.parametrize("made", [Right, EpochAware, SeededByEpoch])
def test_items_that_are_drawn_anew(made):
    assert told(made()).status == "passed"


@pytest.mark.parametrize("made", [Small, Resampled])
def test_what_may_be_renewed_is_not_told_for_certain(made):
    assert told(made()).status == "suspicious"


def test_without_a_promise_it_is_suspicious():
    assert told(Seldom()).status == "passed"
    found = told(KeptLater(), "samples-unchanged")
    assert (found.status, found.code) == ("suspicious", "sample-drawn-once")
    for made in (Right, Seldom, SeededByEpoch):
        assert told(made(), "samples-unchanged").status == "passed"
