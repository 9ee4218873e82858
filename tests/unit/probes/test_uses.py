"""Uses of one value whose gradients cancel: the lines of the user's from which they come."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract
from pytest_torchcheck.probes.gradient.zeros import find_zero_gradient
from pytest_torchcheck.probes.positions.doubled import where_parted

X, Y = torch.linspace(-1, 1, 20).view(5, 4).sin(), torch.linspace(1, -1, 15).view(5, 3)


def double(h):
    return 2 * h


class Net(nn.Module):
    """Adds what it computes from its shift, of which two uses cancel."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Linear(4, 3)
        self.shift = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return self.head(x) + self.rest(self.shift.tanh())


class OnTwoLines(Net):
    def rest(self, h):
        added = double(h)  # FIRST
        return added - double(h)  # SECOND


class OnOneLine(Net):
    def rest(self, h):
        return double(h) - double(h)


class InTwoFunctions(Net):
    def rest(self, h):
        return self.one(h) - self.two(h)

    def one(self, h):
        return 2 * h

    def two(self, h):
        return h * 2


class NotAgain(OnTwoLines):
    """Counts its calls, and does more in each."""

    calls = 0

    def forward(self, x):
        self.calls += 1
        for _ in range(self.calls):
            x = x.mul(1.5).add(1)
        return super().forward(x)


def lines(kind):
    model = kind()

    def run():
        return F.mse_loss(model(X), Y)

    found = find_zero_gradient(run, model, "shift")
    assert found.kind == "cancels"
    assert len(found.uses) == 2
    before = [p.grad for p in model.parameters()]
    places = where_parted(run, model, ["shift"], found.uses)
    assert [p.grad for p in model.parameters()] == before
    return [place.text.partition("# ")[2] for place in places]


def test_the_first_lines_that_differ_within_one_function():
    """The operations themselves are on one line, of a helper that both call."""
    assert lines(OnTwoLines) == ["FIRST", "SECOND"]


def test_uses_on_one_line_or_in_different_functions_are_not_told_apart():
    assert lines(OnOneLine) == []
    assert lines(InTwoFunctions) == []


def test_a_run_that_does_not_repeat_shows_nothing():
    assert lines(NotAgain) == []


def test_the_finding_names_both_lines():
    report = Contract(
        model=OnTwoLines, inputs="B 4", targets="B 3", batch=((X,), Y), loss=F.mse_loss
    ).check(["gradients-exist"])
    (found,) = report.causes
    assert found.code == "grad-zero"
    used = [c.location for c in found.culprits if c.detail == "uses it here"]
    assert [place.text.partition("# ")[2] for place in used] == ["FIRST", "SECOND"]
    assert found.location == used[-1]
    assert f"those of lines {used[0].line}, {used[1].line}" in found.cause
