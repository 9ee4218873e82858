"""A backward that asks autograd for the derivatives of all its tensors may leave the choice of them to its caller."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import Function

from pytest_torchcheck import Contract


class Replayed(Function):
    """Computes again in backward, and differentiates that."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return torch.tanh(x * weight)

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_(x.requires_grad)
            made = torch.tanh(x * weight)
            return torch.autograd.grad(made, (x, weight), g)


class Asserts(Function):
    """Refuses to be called with fewer."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        assert all(ctx.needs_input_grad)
        return g * weight, g * x


@pytest.mark.parametrize(("function", "status"), [(Replayed, "suspicious"), (Asserts, "violated")])
def test_what_raises_where_one_input_alone_wants_a_gradient(function, status: str) -> None:
    given = (torch.randn(3, dtype=torch.float64), torch.randn(3, dtype=torch.float64))
    report = Contract(functions={"it": (function.apply, given)}).check(["gradcheck"])
    assert {f.code: f.status for f in report.findings}["needs-input-grad"] == status
