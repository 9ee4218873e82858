"""Calls of custom autograd Functions are seen however they are made, and torch is as before afterwards."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn

from pytest_torchcheck.probes.loss.consumption import LossWatch
from pytest_torchcheck.probes.recorded.watch import Watch
from pytest_torchcheck.record.applied import Applied


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


class Split(torch.autograd.Function):
    @staticmethod
    def forward(x, factor=3):
        return factor * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.factor = inputs[1]

    @staticmethod
    def backward(ctx, grad):
        return ctx.factor * grad, None


bound = Twice.apply


def parts():
    function = torch.autograd.function
    nodes = vars(function.BackwardCFunction)
    return function._is_setup_context_defined, nodes["apply"], nodes.get("apply_boxed")


def seen_of(run):
    applied, ran = [], []
    block = Applied(
        lambda frame: applied.append((frame.f_locals["cls"].__name__, len(frame.f_locals["args"]))),
        lambda function: ran.append(function.__name__),
    )
    before = parts()
    with block:
        run()
    assert parts() == before
    return applied, ran


@pytest.mark.parametrize(
    ("call", "name"),
    [(bound, "Twice"), (Twice.apply, "Twice"), (Split.apply, "Split")],
    ids=["stored", "class", "setup"],
)
def test_a_call_and_its_backward_are_seen(call, name):
    applied, ran = seen_of(lambda: call(torch.ones(3, requires_grad=True)).sum().backward())
    assert applied == [(name, 1)]
    assert ran == [name]


def test_calls_without_gradients_are_seen_and_other_calls_are_not():
    def run():
        with torch.no_grad():
            bound(torch.ones(2))
        torch.tanh(torch.ones(2, requires_grad=True)).sum().backward()

    assert seen_of(run) == ([("Twice", 1)], [])


def test_blocks_may_stand_in_each_other():
    inner = []
    found = seen_of(lambda: inner.append(seen_of(lambda: bound(torch.ones(2)))))
    assert found == ([("Twice", 1)], []) == inner[0]


def test_an_error_leaves_torch_as_it_was():
    before = parts()
    with pytest.raises(ZeroDivisionError), Applied(lambda frame: 1 / 0, lambda function: None):
        bound(torch.ones(2))
    assert parts() == before


def test_a_profiler_of_the_users_goes_on():
    names = []
    sys.setprofile(lambda frame, event, arg: names.append(frame.f_code.co_name))
    try:
        seen_of(lambda: bound(torch.ones(2)))
    finally:
        sys.setprofile(None)
    assert "forward" in names


class Asking(Watch):
    """Asks torch something at every call."""

    def __init__(self):
        super().__init__()
        self.names = []

    def after(self, func, args, kwargs, result, token):
        self.names.append(func.__name__)
        torch.ones(2).sum()


@pytest.mark.parametrize("inner", [Asking(), LossWatch(nn.Linear(1, 1))])
def test_watches_do_not_see_the_work_of_another(inner):
    asking = Asking()
    with asking, inner:
        torch.tanh(torch.zeros(3))
    assert asking.names == ["zeros", "tanh"]
