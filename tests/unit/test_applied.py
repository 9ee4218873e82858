"""Calls of custom Functions are seen, also where torch's ``Function.apply`` has no frame of its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pytest_torchcheck.record import applied


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return 2 * x * grad


@pytest.mark.parametrize("in_python", [True, False])
def test_a_call_is_seen_by_all_that_look(
    monkeypatch: pytest.MonkeyPatch, *, in_python: bool
) -> None:
    if not in_python:
        monkeypatch.setattr(applied, "_APPLY", None)
    before = vars(torch.autograd.Function)["apply"]
    seen: list[str] = []

    def looks(name: str) -> applied.Applied:
        return applied.Applied(
            lambda frame: seen.append(f"{name} {frame.f_locals['cls'].__name__}"),
            lambda function: seen.append(f"{name} back {function.__name__}"),
        )

    x = torch.randn(3, requires_grad=True)
    with looks("outer"), looks("inner"):
        Square.apply(x).sum().backward()  # type: ignore[no-untyped-call]
    assert sorted(seen) == sorted(
        ["inner Square", "outer Square", "inner back Square", "outer back Square"]
    )
    assert x.grad is not None
    assert torch.allclose(x.grad, 2 * x)
    assert vars(torch.autograd.Function)["apply"] is before
