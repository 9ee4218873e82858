"""A tensor that is written to by another name: the line that gives it the name is told."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.autograd import Function

from pytest_torchcheck import Contract
from pytest_torchcheck.functions.engine import check_function


def told(function):
    (found,) = [
        f for f in check_function(function.apply, (torch.randn(3, 4),)) if f.status == "violated"
    ]
    return found, [c.location.text for c in found.culprits if c.kind == "call" and c.location]


class Gate(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        rows = grad.view(-1)
        masked = x.view(-1) < 0
        rows[masked] = 0
        return grad


class Copies(Gate):
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        rows = grad.clone()
        rows[x < 0] = 0
        return rows


class OwnName(Gate):
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        passed = grad
        grad[x < 0] = 0
        return passed


class Shifts(Function):
    @staticmethod
    def forward(ctx, x):
        out = x
        out += 1
        return out.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad


class SpoilsSaved(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        twice = x.data
        twice.mul_(2)
        return grad * twice


@pytest.mark.parametrize(
    ("function", "code", "line", "fix"),
    [
        (Gate, "upstream-mutated", "rows = grad.view(-1)", "rows = grad.view(-1).clone()"),
        (Shifts, "input-mutated", "out = x", "out = x.clone()"),
        (SpoilsSaved, "backward-not-reentrant", "twice = x.data", "twice = x.data.clone()"),
    ],
)
def test_the_line_that_gives_the_second_name(function, code, line, fix):
    found, lines = told(function)
    assert found.code == code
    assert lines == [line]
    assert fix in found.fix


def test_a_write_by_the_parameters_own_name():
    found, lines = told(OwnName)
    assert found.code == "upstream-mutated"
    assert not lines


def test_a_copy_is_no_second_name():
    found = check_function(Copies.apply, (torch.randn(3, 4),))
    assert "violated" not in {f.status for f in found}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x):
        shifted = x[:, :]
        shifted -= shifted.mean(0)
        return self.linear(shifted)


def test_an_input_of_a_model():
    report = Contract(model=Model(), batch=((torch.randn(5, 4),), None)).check(["inputs-unchanged"])
    (found,) = report.causes
    assert found.code == "input-mutated"
    assert "shifted = x[:, :]" in {c.location.text for c in found.culprits}
    assert "shifted = x[:, :].clone()" in found.fix
