"""A gradient that is right where a model begins must be right where its training leads."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from pytest_torchcheck import Contract


class _Gate(torch.autograd.Function):
    """x * s, whose backward leaves out that the scale is 1 at first only."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, scale)
        return x * scale

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        x, _ = ctx.saved_tensors
        return grad, (grad * x).sum(0)


class _Rows(torch.autograd.Function):
    """Entropy of rows that sum to 1: the derivative leaves out what only another sum would add."""

    @staticmethod
    def forward(ctx: Any, p: torch.Tensor) -> torch.Tensor:
        total = p.sum(-1, keepdim=True)
        ctx.save_for_backward(p)
        return -(p * p.log()).sum(-1) + 3 * (total - 1).square().sum(-1)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        (p,) = ctx.saved_tensors
        return -(p.log() + 1) * grad[:, None]


class _Net(nn.Module):
    def __init__(self, *, gated: bool) -> None:
        super().__init__()
        self.into, self.head = nn.Linear(5, 4), nn.Linear(4, 2)
        self.scale = nn.Parameter(torch.ones(4))
        self.gated = gated

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.into(x))
        if self.gated:
            return self.head(_Gate.apply(h, self.scale))
        scores = self.head(h * self.scale)
        return scores * _Rows.apply(scores.softmax(-1))[:, None]


@pytest.mark.parametrize("gated", [True, False])
def test_what_training_leaves_is_no_domain(*, gated: bool) -> None:
    g = torch.Generator().manual_seed(4)
    report = Contract(
        model=lambda: _Net(gated=gated),
        batch=((torch.randn(6, 5, generator=g),), torch.tensor([0, 1, 0, 1, 1, 0])),
        loss=nn.functional.cross_entropy,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    ).check(["gradcheck"])  # fmt: skip
    assert any(f.status == "violated" for f in report.findings) is gated, [
        *map(str, report.findings)
    ]
