"""Calls of custom Functions are seen, however ``Function.apply`` was reached."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch

from pytest_torchcheck.record import applied

if TYPE_CHECKING:
    from collections.abc import Callable


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return 2 * x * grad


class Split(torch.autograd.Function):
    """Has a context of its own step, and a default."""

    generate_vmap_rule = True
    asked: applied.Applied | None = None
    inside: tuple[Any, ...] = ()

    @staticmethod
    def _look() -> None:
        running = Split.asked.outermost if Split.asked is not None else None
        Split.inside = (*Split.inside, running and running.function.__name__)

    @staticmethod
    def forward(x: torch.Tensor, factor: float = 2.0) -> torch.Tensor:
        Split._look()
        return x * factor

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        Split._look()
        ctx.factor = inputs[1]

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad * ctx.factor, None


class Failing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        raise ValueError("on purpose")


STORED = Square.apply
"""A bound method from before anybody looked: replacing ``apply`` on the class does not change it."""


@pytest.mark.parametrize("apply", [lambda x: Square.apply(x), STORED], ids=["named", "stored"])
def test_a_call_is_seen_by_all_that_look(apply: Callable[..., Any]) -> None:
    homes: tuple[Any, ...] = (
        torch.autograd.Function,
        type(torch.autograd.Function),
        torch.autograd.function,
        torch.autograd.function.BackwardCFunction,
        Square,
    )
    before = [dict(vars(home)) for home in homes]
    seen: list[str] = []

    def looks(name: str) -> applied.Applied:
        return applied.Applied(
            lambda it, args, kwargs: seen.append(f"{name} {it.function.__name__}"),
            lambda function: seen.append(f"{name} back {function.__name__}"),
        )

    x = torch.randn(3, requires_grad=True)
    with looks("outer"), looks("inner"):
        apply(x).sum().backward()
    assert sorted(seen) == sorted(
        ["inner Square", "outer Square", "inner back Square", "outer back Square"]
    )
    assert x.grad is not None
    assert torch.allclose(x.grad, 2 * x)
    assert [dict(vars(home)) for home in homes] == before


def test_what_an_application_was_given() -> None:
    seen: list[Any] = []

    def look(it: applied.Application, args: Any, kwargs: Any) -> None:
        seen.append((it.function, it.grad_enabled, args, dict(kwargs)))
        callers.append(it.caller.f_code)

    callers: list[Any] = []
    x, here = torch.randn(3, requires_grad=True), sys._getframe().f_code
    with applied.Applied(look):
        STORED(x)
        with torch.no_grad():
            Split.apply(x, 3.0)
        Split.apply(x)
        Split.forward(x)  # no application
    assert seen == [
        (Square, True, (x,), {}),
        (Split, False, (x, 3.0), {}),
        (Split, True, (x, 2.0), {}),
    ]
    outside = [code for code in callers if "torch" not in code.co_filename.split("/")]
    assert set(outside) <= {here}


def test_what_runs_is_known_in_forward_and_in_setup_context() -> None:
    Split.inside = ()
    with applied.Applied() as Split.asked:
        Split.apply(torch.randn(3))
        assert Split.asked.outermost is None
        Split._look()
        torch.func.grad(lambda x: Split.apply(x).sum())(torch.randn(3))
        with pytest.raises(ValueError, match="on purpose"):
            Failing.apply(torch.randn(3))
        assert Split.asked.outermost is None
    Split.asked = None
    assert Split.inside == ("Split", "Split", None, "Split", "Split", "Split")


def test_a_call_inside_a_transform_is_seen_as_it_was_made() -> None:
    seen: list[Any] = []
    x = torch.randn(4, 3)
    with applied.Applied(lambda it, args, kwargs: seen.append((it.function, args))):
        torch.vmap(Split.apply)(x)
    function, (given, factor) = seen[0]
    assert (function, factor) == (Split, 2.0)
    assert given.shape == (3,)


def test_a_block_may_end_inside_a_forward() -> None:
    block = applied.Applied()

    class Ends(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            block.__exit__()
            return x + 1

    block.__enter__()
    assert torch.equal(Ends.apply(torch.zeros(2)), torch.ones(2))
    assert block.outermost is None
