"""The profile hook sees the calls of a run, and not what observers do between them."""

from __future__ import annotations

import cProfile
import sys

import pytest
import torch
from torch import nn

from pytest_torchcheck.probes.loss.consumption import LossWatch
from pytest_torchcheck.probes.recorded.watch import Watch
from pytest_torchcheck.record.profile import Profiled, pause, resume


def called():
    return 1


def seen_of(run):
    names = []
    with Profiled(lambda frame, event, arg: names.append((event, frame.f_code.co_name))):
        run()
    return [name for event, name in names if event == "call"]


def test_a_pause_hides_what_runs_in_it():
    def run():
        hook = pause()
        called()
        resume(hook)
        called()

    assert seen_of(run).count("called") == 1
    assert sys.getprofile() is None
    assert pause() is None  # no block is open


def test_another_hook_goes_on_and_is_left_alone():
    others = []

    def other(frame, event, arg):
        others.append(frame.f_code.co_name)

    sys.setprofile(other)
    try:
        assert "called" in seen_of(called)
        assert sys.getprofile() is other
        assert pause() is None
        assert sys.getprofile() is other
    finally:
        sys.setprofile(None)
    assert "called" in others


def test_a_running_profiler_pauses_meanwhile():
    profiler = cProfile.Profile()
    profiler.enable()
    try:
        assert "called" in seen_of(called)
    finally:
        profiler.disable()


class Asking(Watch):
    """Asks torch something at every call."""

    def __init__(self):
        super().__init__()
        self.names = []

    def after(self, func, args, kwargs, result, token):
        self.names.append(func.__name__)
        called()
        torch.ones(2).sum()


@pytest.mark.parametrize("inner", [Asking(), LossWatch(nn.Linear(1, 1))])
def test_watches_see_neither_the_work_of_another_nor_cost_it_events(inner):
    asking = Asking()
    names = []
    with Profiled(lambda frame, event, arg: names.append(frame.f_code.co_name)), asking, inner:
        torch.tanh(torch.zeros(3))
    assert asking.names == ["zeros", "tanh"]
    assert "called" not in names
