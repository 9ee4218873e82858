"""Branches that a number of 0 keeps from being trained until something raises it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from pytest_torchcheck import Contract

CHECKS = ["gradients-exist", "weights-update"]


class Faded(nn.Module):
    """Fades a new branch in beside the old one."""

    def __init__(self) -> None:
        super().__init__()
        self.old, self.new, self.head = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(8, 3)
        self.share = 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head((1 - self.share) * self.old(x).tanh() + self.share * self.new(x).tanh())


class Scheduled(Faded):
    def begin_epoch(self, epoch: int) -> None:
        self.share = min(1.0, epoch / 10)


class Held(Faded):
    """Holds the share in a buffer, which a method moves in place."""

    def __init__(self) -> None:
        super().__init__()
        del self.share
        self.register_buffer("share", torch.zeros(()))

    def grow(self) -> None:
        self.share.add_(0.1)


class Turned(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, strength: float) -> torch.Tensor:
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple:
        return -ctx.strength * grad, None


class Adversarial(nn.Module):
    """Trains a bottleneck by the reversed gradient alone; the loop raises the strength."""

    def __init__(self, strength: float = 0.0, wrong: bool = False) -> None:
        super().__init__()
        self.body, self.task = nn.Linear(6, 8), nn.Linear(8, 3)
        self.narrow, self.site = nn.Linear(8, 4), nn.Linear(4, 3)
        self.strength, self.wrong = strength, wrong

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.body(x).tanh()
        strength = 0.0 * self.strength if self.wrong else self.strength
        return self.task(h) + self.site(Turned.apply(self.narrow(h), strength))


def _found(model: nn.Module) -> dict[str, Any]:
    x = torch.randn(6, 6, generator=torch.Generator().manual_seed(0))
    contract = Contract(
        model=model, batch=((x,), torch.arange(6) % 3), loss=nn.functional.cross_entropy
    )
    return {f.code: f for f in contract.check(CHECKS).findings}


@pytest.mark.parametrize(
    ("model", "name"),
    [(Scheduled, "share"), (Held, "share"), (Adversarial, "strength")],
    ids=["number", "buffer", "reversal"],
)
def test_what_a_schedule_raises_may_be_0_at_first(model, name):
    found = _found(model())
    assert "violated" not in {f.status for f in found.values()}
    assert f"{name} is 0 in the model as built" in found["grad-zero"].cause


def test_the_method_that_raises_it_is_named():
    assert "begin_epoch may raise it" in _found(Scheduled())["grad-zero"].cause


@pytest.mark.parametrize(
    "model", [Faded, lambda: Adversarial(0.7, wrong=True)], ids=["never raised", "times zero"]
)
def test_a_branch_that_nothing_opens_is_still_found(model):
    assert _found(model())["grad-zero"].status == "violated"
