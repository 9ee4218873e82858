"""A part of the upstream gradient that backward never reads is named, where forward's output depends on the input there."""

from __future__ import annotations

import functions_correct as correct
import pytest
import torch
from torch.autograd import Function

from pytest_torchcheck.functions.engine import check_function


class Rollout(Function):
    """A recurrence that returns its state at every time, with its adjoint."""

    decay, late = 0.7, 0

    @classmethod
    def forward(cls, ctx, start):
        states = [torch.tanh(start)]
        for _ in range(3):
            states.append(Rollout.decay * states[-1].sin())
        states = torch.stack(states)
        ctx.save_for_backward(states)
        return states

    @classmethod
    def backward(cls, ctx, grad_states):
        (states,) = ctx.saved_tensors
        adjoint = grad_states[-1]
        for t in range(3, 0, -1):
            adjoint = Rollout.decay * states[t - 1].cos() * adjoint + grad_states[t - 1 + cls.late]
        return adjoint * (1 - states[0] ** 2)


class RolloutLate(Rollout):
    late = 1


class RolloutSlope(Rollout):
    """Reads every time, with a wrong slope at the end."""

    @staticmethod
    def backward(ctx, grad_states):
        (states,) = ctx.saved_tensors
        return Rollout.backward(ctx, grad_states) * (1 + states[0] ** 2)


def start():
    torch.manual_seed(0)
    return (torch.randn(2, 3, dtype=torch.float64),)


def wrong(fn):
    return [f for f in check_function(fn, start()) if f.status == "violated"]


def test_the_time_that_is_left_out_is_named():
    (found,) = wrong(RolloutLate.apply)
    assert found.code == "gradcheck-mismatch"
    assert found.cause == "backward does not use grad_states[0] for the gradient of start"
    assert found.evidence["unread"] == "grad_states[0]"


def test_what_another_operation_returns_is_no_argument_of_backward():
    def solve(x):
        return RolloutLate.apply(x).flip(0) * 2

    (found,) = wrong(solve)
    assert "grad_output[3]" in found.cause
    assert "grad_states" not in found.cause


def test_a_wrong_slope_reads_every_part():
    (found,) = wrong(RolloutSlope.apply)
    assert "unread" not in found.evidence


def tail(x):
    return Rollout.apply(x)[1:]


@pytest.mark.parametrize(
    "fn", [Rollout.apply, correct.Swish.apply, tail], ids=["rollout", "swish", "tail"]
)
def test_correct_functions_pass(fn):
    assert not wrong(fn)
