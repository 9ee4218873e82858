from __future__ import annotations

import random
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import torch

from pytest_torchcheck.data import snapshot as module
from pytest_torchcheck.data.contents import Contents
from pytest_torchcheck.data.snapshot import Snapshot

if TYPE_CHECKING:
    import pytest


class Thing:
    def __init__(self) -> None:
        self.images = np.arange(24.0).reshape(4, 6)
        self.rows = [torch.zeros(2), torch.ones(2)]
        self.cache: dict[int, float] = {}
        self.rng = random.Random(0)
        self.calls = 0


def test_paths_of_what_is_held() -> None:
    contents = Contents(Thing())
    assert [held.path for held in contents.arrays] == ["images", "rows[0]", "rows[1]"]
    assert [held.path for held in contents.generators] == ["rng"]


def test_generator_in_a_closure_is_found() -> None:
    rng = np.random.default_rng(0)
    thing = SimpleNamespace(transform=lambda x: x + rng.normal())
    assert [held.path for held in Contents(thing).generators] == ["transform.rng"]


def test_changes_and_restore() -> None:
    thing = Thing()
    taken = Snapshot(Contents(thing))
    first = thing.rng.random()
    thing.images[2, 3] = -1.0
    thing.rows[1].add_(1)
    thing.cache[0] = 1.0
    thing.calls += 1
    assert [(c.held.path, c.held.kind, c.rows) for c in taken.changes()] == [
        ("images", "array", (2,)), ("rows[1]", "array", (0, 1)), ("cache", "container", ()), ("calls", "attribute", ()),
    ]  # fmt: skip
    images = thing.images
    taken.restore()
    assert taken.changes() == []
    assert thing.images is images
    assert thing.images[2, 3] == 15.0
    assert thing.cache == {}
    assert thing.rng.random() == first


def test_nan_is_no_change() -> None:
    thing = SimpleNamespace(x=torch.tensor([float("nan"), 1.0]), y=np.array([np.nan]))
    assert Snapshot(Contents(thing)).changes() == []


def test_of_large_arrays_only_the_rows_read_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FULL_COPY_BYTES", 100)
    thing = SimpleNamespace(x=torch.zeros(1000, 4))
    taken = Snapshot(Contents(thing, rows=(0, 500)))
    thing.x[500] += 1
    thing.x[501] += 1
    assert [change.rows for change in taken.changes()] == [(500,)]
    taken.restore()
    assert thing.x[500].eq(0).all()


def test_attributes_added_are_removed() -> None:
    thing = SimpleNamespace(x=1)
    taken = Snapshot(Contents(thing))
    thing.y = 2
    taken.restore()
    assert vars(thing) == {"x": 1}
