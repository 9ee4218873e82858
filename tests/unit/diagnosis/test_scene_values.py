"""What a failing line was given, described without running any of the user's code."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pytest_torchcheck.diagnosis.crashes.scene import Scene
from pytest_torchcheck.diagnosis.gradient.non_finite import remedy
from pytest_torchcheck.explanation import clipped, counted
from pytest_torchcheck.probes.numbers.finiteness import find_nonfinite


class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))
        self.register_buffer("shift", torch.zeros(3))
        self.steps = 7

    @property
    def touchy(self):
        raise AssertionError("a description must not run this")

    def forward(self, x, pair):
        h = x * self.scale
        raise ValueError(h, self.shift, self.steps, pair, self.touchy if not len(pair) else None)


def scene_of(run):
    try:
        run()
    except Exception as error:
        return Scene(error, phase="forward")
    raise AssertionError("nothing was raised")


def test_the_values_of_the_failing_line():
    scene = scene_of(lambda: Odd()(torch.zeros(2, 3), [torch.zeros(1), torch.zeros(4)]))
    assert scene.values(most=9) == (
        "h float32 [2, 3] with grad_fn=MulBackward0, shift float32 [3], steps 7, "
        "pair list (float32 [1], float32 [4])"
    )


def test_a_line_that_names_no_value_is_told_by_its_message():
    def run():
        raise ValueError("no luck")

    assert scene_of(run).values() == "no luck"


def test_quotes_end_behind_a_whole_word():
    scene = scene_of(lambda: torch.zeros(2, 3) @ torch.zeros(4, 5))
    words = scene.quote(40)
    assert words.startswith('torch said "mat1 and mat2')
    assert words.endswith('..."')
    assert clipped("one two three", 20) == "one two three"
    assert clipped("one two three", 12) == "one two..."
    assert (counted(1, "tensor"), counted(2, "entry", "entries")) == ("1 tensor", "2 entries")


@pytest.mark.parametrize(
    ("run", "cause", "fix"),
    [
        (lambda x: (x * 0 - 1).sqrt(), "negative number", "clamp(min=eps)"),
        (lambda x: (x * 0).log(), "logarithm of 0", "clamp"),
        (lambda x: x / (x * 0), "division by zero", "denominator"),
        (lambda x: (x + float("-inf")).softmax(-1), "masked with -inf", "unmasked"),
        (lambda x: (x * 0 + 1000).exp(), "exp overflows", "logsumexp"),
    ],
)
def test_the_cause_of_a_value_that_is_not_finite_is_named(run, cause, fix):
    x = torch.ones(2, 3, requires_grad=True)
    found = find_nonfinite(lambda: run(x).sum())
    assert found is not None
    told = remedy(found, forward=True)
    assert cause in told[0]
    assert fix in told[1]
    assert "on line" in told[1]


def test_a_derivative_that_is_not_finite_is_named():
    x = torch.zeros(3, requires_grad=True)
    found = find_nonfinite(lambda: x.sqrt().sum())
    assert found is not None
    assert found.phase == "backward"
    assert remedy(found, forward=False)[0] == "the derivative of a square root at 0 is infinite"
    assert "an operation" in remedy(None, forward=False)[0]
