"""Splits that hold the same samples with a little noise, and sound ones in which samples are close by nature."""

from __future__ import annotations

import tracemalloc

import pytest
import torch
from torch.utils.data import TensorDataset

from pytest_torchcheck import Contract

g = torch.Generator().manual_seed(7)
X, Y = torch.randn(80, 6, generator=g), torch.randn(80, 1, generator=g)


def noise(x, size):
    return x + size * torch.randn(x.shape, generator=torch.Generator().manual_seed(1))


def found(train, held_out):
    splits = {"train": TensorDataset(*train), "eval": TensorDataset(*held_out)}
    findings = Contract(dataset=splits).check(["split-hygiene"]).findings
    return {f.code: f.status for f in findings if f.status in ("violated", "suspicious", "error")}


@pytest.mark.parametrize(
    "held_out",
    [
        (noise(X[:30], 1e-3), Y[:30]),
        (torch.cat((noise(X[:10], 1e-5), noise(X[:20], 2.0))), Y[torch.arange(30) % 10]),
        (noise(X[20:40], 1e-3), noise(Y[20:40], 1e-3)),
    ],
    ids=["all", "a-third", "targets-too"],
)
def test_samples_with_a_little_noise_are_found(held_out):
    assert found((X, Y), held_out) == {"split-near": "violated"}


CURVE = torch.linspace(0, 6, 200)[:, None].sin().cumsum(0).unfold(0, 8, 1).squeeze(1)
GRID = torch.cartesian_prod(torch.linspace(0, 1, 10), torch.linspace(0, 1, 10))


@pytest.mark.parametrize(
    ("train", "held_out"),
    [
        ((X[:40], Y[:40]), (X[40:], Y[40:])),
        ((X, Y), (noise(X, 1e-3), Y.flip(0))),
        ((CURVE[::2], CURVE[::2, :1]), (CURVE[1::2], CURVE[1::2, :1])),
        ((GRID, GRID[:, :1]), (GRID + 0.05, GRID[:, :1])),
        ((X[:, :2], Y), (torch.rand(60, 2, generator=g), Y[:60])),
        ((X.sign(), Y), (noise(X.sign(), 1e-3), Y)),
        ((X, Y), (noise(X, 1.0), Y)),
    ],
    ids=["apart", "other-targets", "windows", "grids", "plane", "signs", "far"],
)
def test_splits_of_close_samples_are_sound(train, held_out):
    assert "split-near" not in found(train, held_out)


SERIES = torch.randn(160, 2, generator=torch.Generator().manual_seed(5)).cumsum(0)
WINDOWS = SERIES.unfold(0, 12, 1).mT  # [149, 12, 2]
NEXT = SERIES[12:]
KINDS = (torch.arange(149) // 30)[:, None]
ORDER = torch.randperm(148, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("targets", [NEXT, KINDS], ids=["next", "labels"])
def test_windows_of_one_series_that_are_split_at_random(targets):
    train, held_out = ORDER[:110], ORDER[110:]
    splits = ((WINDOWS[i], targets[i]) for i in (train, held_out))
    assert found(*splits) == {"split-near": "violated"}


@pytest.mark.parametrize("targets", [NEXT, KINDS], ids=["next", "labels"])
@pytest.mark.parametrize("first", [136, 110], ids=["few", "many"])
def test_windows_of_a_later_time_share_their_context_at_most(targets, first):
    splits = ((WINDOWS[i], targets[i]) for i in (slice(first), slice(first, 148)))
    assert "split-near" not in found(*splits)


def test_what_stands_at_one_place_of_all_samples_is_no_window():
    frame = torch.randn(9, generator=g)
    framed = torch.cat((frame.expand(80, -1), X[:, :1], frame.expand(80, -1)), 1)
    assert "split-near" not in found((framed[:40], Y[:40]), (framed[40:], Y[40:]))


def test_parts_of_the_first_split_are_not_all_kept():
    """Grey levels recur in any image: 200 images hold 101 parts of 100 numbers each, 16 MB."""
    levels = torch.randint(0, 256, (300, 200), generator=g) / 2
    kinds = torch.zeros(300, 1)
    tracemalloc.start()
    codes = found((levels[:200], kinds[:200]), (levels[200:], kinds[200:]))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "split-near" not in codes
    assert peak < 8e6, peak
