"""A custom autograd Function: found in the model by itself, and checked against numerical derivatives.

Run with ``pytest --torchcheck examples``.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, assert_gradcheck, contract


class Swish(torch.autograd.Function):
    """``x * sigmoid(beta * x)`` that saves its inputs only, not the sigmoid."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, beta: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, beta)
        return x * torch.sigmoid(beta * x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, beta = ctx.saved_tensors
        gate = torch.sigmoid(beta * x)
        slope = gate * (1 - gate)
        return grad * (gate + beta * x * slope), (grad * x * x * slope).sum()


class SwishNet(nn.Module):
    """A small net with a trainable Swish."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(6, 16), nn.Linear(16, 1)
        self.beta = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outer(Swish.apply(self.inner(x), self.beta)).squeeze(1)


@contract(inputs="B 6", targets="B", sizes={"B": (1, 12)}, output="B", loss=F.mse_loss)
def swish_net() -> nn.Module:
    return SwishNet()


functions = Contract(
    functions={"swish": (Swish.apply, (torch.linspace(-2, 2, 6), torch.tensor(0.7)))},
)


def test_swish_by_hand() -> None:
    """The same as an assertion, with or without ``--torchcheck``."""
    assert_gradcheck(Swish.apply, (torch.linspace(-2, 2, 6), torch.tensor(0.7)), twice=True)
