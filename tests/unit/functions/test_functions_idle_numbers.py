"""Gradients that are zero only while an argument is 0, and Functions that do nothing but to gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import Function

from pytest_torchcheck import Contract
from pytest_torchcheck.functions.engine import check_function


class Turned(Function):
    """Adversarial: the gradient is reversed by a strength that a schedule raises."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, strength: float) -> torch.Tensor:
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple:
        return None if ctx.strength == 0 else -ctx.strength * grad, None


class TurnedByTensor(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, strength: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(strength)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple:
        return -ctx.saved_tensors[0] * grad, None


def _product(wrong: float) -> type[Function]:
    class Product(Function):
        """Trains its second factor only where a flag says so."""

        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor, both: bool) -> torch.Tensor:
            ctx.save_for_backward(x, y)
            ctx.both = both
            return x * y

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> tuple:
            x, y = ctx.saved_tensors
            return grad * y, wrong * grad * x if ctx.both else torch.zeros_like(y), None

    return Product


class SumOver(Function):
    """The first dimension is taken for none."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dim: int) -> torch.Tensor:
        ctx.shape, ctx.dim = x.shape, dim
        return x.sum(dim)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple:
        if not ctx.dim:
            return grad.new_zeros(ctx.shape), None
        return grad.unsqueeze(ctx.dim).expand(ctx.shape), None


class Sine(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, eps: float) -> torch.Tensor:
        return torch.sin(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple:
        return torch.zeros_like(grad), None


class Stopped(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(grad)


class Sparse(Function):
    """Adds the gradient of an L1 penalty to what flows back."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: float) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.weight = weight
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple:
        (x,) = ctx.saved_tensors
        return grad + ctx.weight * x.sign(), None


class Balanced(Function):
    """Gives an auxiliary loss its own gradient, beside an output that passes through."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, balance: torch.Tensor, weight: float) -> torch.Tensor:
        ctx.save_for_backward(balance)
        ctx.weight = weight
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple:
        return grad, torch.full_like(ctx.saved_tensors[0], ctx.weight), None


class Pruned(Function):
    """Keeps the pruned entries of a weight from being trained."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(mask)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple:
        return grad * ctx.saved_tensors[0], None


def _values(seed: int) -> torch.Tensor:
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(seed))


X, Y = _values(0), _values(1)
MASK = (Y > 0).float()


def _found(function: Any, *arguments: Any) -> list[Any]:
    made = Contract(functions={"op": (function.apply, arguments)}, name="op")
    return list(made.check(["gradcheck"]).findings)


@pytest.mark.parametrize(
    ("function", "strength"),
    [(Turned, 0.0), (Turned, 0), (TurnedByTensor, torch.tensor(0.0))],
    ids=["float", "int", "tensor"],
)
def test_a_reversal_is_judged_with_a_strength_above_zero(function, strength):
    (finding,) = _found(function, X, strength)
    assert finding.status == "suspicious"
    assert finding.code in ("gradcheck-scale", "gradcheck-sign")
    assert "as given, the gradient is zero" in finding.because


def test_a_reversal_within_a_model_that_ramps_it_is_not_blamed():
    class Adapted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.task, self.site = nn.Linear(4, 8), nn.Linear(8, 2), nn.Linear(8, 2)
            self.strength = 0.0

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            hidden = self.body(x).tanh()
            return self.task(hidden), self.site(Turned.apply(hidden, self.strength))

    def loss(output: Any, targets: torch.Tensor) -> torch.Tensor:
        task, site = output
        cross_entropy = nn.functional.cross_entropy
        return cross_entropy(task, targets) + cross_entropy(site, 1 - targets)

    made = Contract(model=Adapted(), batch=((_values(2),), torch.tensor([0, 1, 1])), loss=loss)
    found = made.check(["gradcheck", "gradients-exist", "double-backward"]).findings
    assert "violated" not in [f.status for f in found]


def test_a_gradient_that_a_flag_switches_off_is_right_where_it_is_on():
    (finding,) = _found(_product(1.0), X, Y, False)
    assert finding.status == "passed"
    assert "both=True" in finding.summary


def test_what_is_wrong_where_the_flag_is_on_is_found_where_it_is_off():
    (finding,) = _found(_product(2.0), X, Y, False)
    assert (finding.status, finding.code) == ("violated", "gradcheck-scale")
    assert "both=True" in finding.because


@pytest.mark.parametrize(
    "arguments", [(SumOver, X, 0), (Sine, X, 0.0)], ids=["a dimension", "a number of no effect"]
)
def test_a_zero_that_no_argument_explains_is_still_found(arguments):
    (finding,) = _found(*arguments)
    assert (finding.status, finding.code) == ("violated", "gradcheck-zero")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ((Stopped, X), "gradcheck-zero"),
        ((Sparse, X, 0.1), "upstream-zero"),
        ((Balanced, X, Y.sum(), 0.1), "gradcheck-upstream-ignored"),
        ((Pruned, X, MASK), "gradcheck-mask"),
    ],
    ids=["stopped", "penalty", "auxiliary loss", "mask"],
)
def test_what_passes_its_input_on_is_written_for_its_gradient(arguments, code):
    found = _found(*arguments)
    assert "violated" not in [f.status for f in found]
    (finding,) = [f for f in found if f.code == code]
    assert "promises.StraightThrough" in finding.fix


def test_random_numbers_go_on_as_before():
    torch.manual_seed(4)
    expected = torch.rand(3)
    torch.manual_seed(4)
    _found(Turned, X, 0.0)
    check_function(Turned.apply, (X, 0.0))
    assert torch.equal(torch.rand(3), expected)
