"""The collector walks through what a run made; what was there before is out of its way until the run ends."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn

from pytest_torchcheck import Contract
from pytest_torchcheck.objects import heap


class Cycle:
    """Something that only the collector frees."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def _nothing_frozen(monkeypatch):
    monkeypatch.setattr(heap, "_FROZEN", [])
    heap._OTHERS.clear()
    gc.unfreeze()
    yield
    heap._OTHERS.clear()  # freezing now would hide what other tests' modules hold
    gc.unfreeze()


def test_what_existed_is_out_of_the_way_and_comes_back():
    before = Cycle()
    heap.freeze()
    made = Cycle()
    assert not any(thing is before for thing in gc.get_objects())
    assert any(thing is made for thing in gc.get_objects())
    heap.release()
    assert any(thing is before for thing in gc.get_objects())
    assert gc.get_freeze_count() == 0


def test_what_died_meanwhile_is_collected_on_the_way_out():
    heap.freeze()
    alive = weakref.ref(Cycle())
    heap.release()
    assert alive() is None


def test_the_last_one_gives_back():
    heap.freeze()
    heap.freeze()
    heap.release()
    assert gc.get_freeze_count()
    heap.release()
    assert not gc.get_freeze_count()


def test_what_the_program_froze_stays_frozen():
    gc.freeze()
    heap.freeze()
    heap.thaw()
    heap.release()
    assert gc.get_freeze_count()


def test_what_the_program_froze_is_counted_once(monkeypatch):
    gc.freeze()
    for _ in range(3):
        heap.freeze()
        heap.release()
    monkeypatch.setattr(
        gc, "get_freeze_count", lambda: pytest.fail("it walks through all that is frozen")
    )
    heap.freeze()
    heap.release()


def test_a_program_that_collects_by_itself_is_left_alone():
    gc.disable()
    try:
        heap.freeze()
        assert not gc.get_freeze_count()
        heap.release()
    finally:
        gc.enable()


def test_who_looks_for_something_sees_it():
    before = Cycle()
    heap.freeze()
    heap.thaw()
    assert any(thing is before for thing in gc.get_objects())
    heap.release()
    assert not gc.get_freeze_count()


def test_a_run_leaves_the_collector_as_it_was():
    seen: list[int] = []

    class Looking(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(gc.get_freeze_count())
            return super().forward(x)

    Contract(model=Looking(3, 2), batch=torch.randn(4, 3)).check(["eval-determinism"])
    assert all(seen)
    assert not gc.get_freeze_count()
