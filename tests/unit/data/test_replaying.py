"""A transform that is to be repeated on the mask: which generator is set back, and which is drawn from."""

from __future__ import annotations

import inspect
import random

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from pytest_torchcheck import Contract


def flipped(tile):
    return tile.flip(-1) if torch.rand(1).item() < 0.5 else tile


def turned(tile):
    return torch.rot90(tile, random.randrange(4), dims=(-2, -1))


class Base(Dataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(3)
        self.images = torch.rand(12, 3, 8, 8, generator=generator)
        self.masks = (self.images[:, 0] > 0.5).long()
        self.rng = np.random.default_rng(0)

    def __len__(self):
        return 12

    def shifted(self, tile):
        return torch.roll(tile, int(self.rng.integers(1, 8)), -1)


class StateSetBack(Base):
    def __getitem__(self, i):
        state = np.random.get_state()
        image = flipped(self.images[i])
        np.random.set_state(state)  # BUG
        return image, flipped(self.masks[i])


class SeededTwice(Base):
    def __getitem__(self, i):
        seed, out = random.randrange(2**30), []
        for tile in (self.images[i], self.masks[i]):
            random.seed(seed)
            torch.manual_seed(seed)  # BUG
            out.append(self.shifted(tile))
        return tuple(out)


class RightOne(Base):
    def __getitem__(self, i):
        state = random.getstate()
        image = turned(self.images[i])
        random.setstate(state)
        return flipped(image) * 0 + image, turned(self.masks[i])


class AllOfThem(Base):
    def __getitem__(self, i):
        out = []
        for tile in (self.images[i], self.masks[i]):
            for seed in (random.seed, np.random.seed, torch.manual_seed):
                seed(17 + i)
            out.append(flipped(tile))
        return tuple(out)


class OwnStateToo(Base):
    def __getitem__(self, i):
        state, own = random.getstate(), self.rng.bit_generator.state
        image = self.shifted(self.images[i])
        random.setstate(state)
        self.rng.bit_generator.state = own
        return image, self.shifted(self.masks[i])


class Protected(Base):
    """Keeps torch's state from what a helper may draw, and adds noise of NumPy's within and without."""

    def __getitem__(self, i):
        with torch.random.fork_rng(devices=[]):
            image = self.images[i] + float(np.random.rand()) * 0.1
        return image * (1 + float(np.random.rand())), self.masks[i]


class TwoViews(Base):
    def __getitem__(self, i):
        torch.manual_seed(i)
        return self.shifted(self.images[i]), self.shifted(self.images[i])


class NoTransform(Base):
    """The transform that is repeated draws nothing in this configuration."""

    def __getitem__(self, i):
        state = random.getstate()
        image = self.images[i] + 0.1 * torch.randn(3, 8, 8)
        random.setstate(state)
        weight = torch.rand(1)
        return image, self.masks[i] * weight


def told(dataset):
    before = random.getstate(), torch.get_rng_state(), np.random.get_state()[1].tolist()
    state, seeding = (
        dataset.rng.bit_generator.state,
        (random.seed, torch.manual_seed, np.random.seed),
    )
    report = Contract(dataset=dataset).check(["dataset-labels"])
    assert before[0] == random.getstate()
    assert torch.equal(before[1], torch.get_rng_state())
    assert before[2] == np.random.get_state()[1].tolist()
    assert dataset.rng.bit_generator.state == state
    assert seeding == (random.seed, torch.manual_seed, np.random.seed)
    return [f for f in report.findings if f.code == "transform-not-repeated"]


@pytest.mark.parametrize(
    ("made", "call", "drawn"),
    [
        (StateSetBack, "np.random.set_state", "torch"),
        (SeededTwice, "random.seed", "rng"),
    ],
)
def test_a_generator_that_is_set_back_in_vain(made, call, drawn):
    (found,) = told(made())
    assert found.status == "violated"
    assert [one.name for one in found.culprits] == [call, drawn]
    lines, start = inspect.getsourcelines(made)
    marked = next(start + i for i, text in enumerate(lines) if "# BUG" in text)
    assert abs(found.location.line - marked) <= (made is SeededTwice)


@pytest.mark.parametrize(
    "made", [RightOne, AllOfThem, OwnStateToo, Protected, TwoViews, NoTransform]
)
def test_what_looks_alike_is_right(made):
    assert told(made()) == []
