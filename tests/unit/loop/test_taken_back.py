"""A step that moves weights uphill for a second gradient brings them back to where they were."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract

X, Y = torch.linspace(-1, 1, 24).view(8, 3).sin(), torch.linspace(1, -1, 16).view(8, 2).square()


def slope(model, x, y):
    F.mse_loss(model(x), y).backward()
    return [0.1 * p.grad for p in model.parameters()]


@torch.no_grad()
def move(model, by, sign=1):
    for p, way in zip(model.parameters(), by, strict=True):
        p.add_(sign * way)


def up(model, optimizer, x, y):
    way = slope(model, x, y)
    move(model, way)
    optimizer.zero_grad()
    return way, slope(model, x, y)


def other_way(model, optimizer, x, y):
    _, second = up(model, optimizer, x, y)
    move(model, second, -1)
    optimizer.step()


def twice(model, optimizer, x, y):
    way, _ = up(model, optimizer, x, y)
    move(model, way, -1)
    optimizer.step()
    move(model, way, -1)


def never(model, optimizer, x, y):
    up(model, optimizer, x, y)
    optimizer.step()


def behind_the_counter(model, optimizer, x, y):
    for p, way in zip(model.parameters(), slope(model, x, y), strict=True):
        p.data.add_(way)
    optimizer.zero_grad()
    for p, way in zip(model.parameters(), slope(model, x, y), strict=True):
        p.data.sub_(way)
    optimizer.step()


class Sharpness(torch.optim.Optimizer):
    """Takes a closure, and steps another optimizer within its own step."""

    def __init__(self, base, right):
        self.base, self.right = base, right
        super().__init__(base.param_groups[0]["params"], {})
        self.param_groups = base.param_groups

    @torch.no_grad()
    def step(self, closure):
        held = [p for group in self.param_groups for p in group["params"]]
        way = [0.1 * p.grad for p in held]
        torch._foreach_add_(held, way)
        self.zero_grad()
        with torch.enable_grad():
            closure()
        torch._foreach_sub_(held, way if self.right else [0.1 * p.grad for p in held])
        self.base.step()


def wrapped(right):
    def step(model, optimizer, x, y):
        outer = Sharpness(optimizer, right)
        slope(model, x, y)
        outer.step(lambda: slope(model, x, y))

    return step


def same_way(model, optimizer, x, y):
    way, _ = up(model, optimizer, x, y)
    move(model, way, -1)
    optimizer.step()


def after_the_update(model, optimizer, x, y):
    way, _ = up(model, optimizer, x, y)
    optimizer.step()
    move(model, way, -1)


def copied_back(model, optimizer, x, y):
    own = [p.detach().clone() for p in model.parameters()]
    up(model, optimizer, x, y)
    with torch.no_grad():
        for p, then in zip(model.parameters(), own, strict=True):
            p.copy_(then)
    optimizer.step()


def clipped_and_disturbed(model, optimizer, x, y):
    same_way(model, optimizer, x, y)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(0.999).add_(1e-3 * torch.randn_like(p)).clamp_(-1, 1)


def by_hand(model, optimizer, x, y):
    """Two updates of its own before the optimizer's."""
    move(model, slope(model, x, y), -1)
    optimizer.zero_grad()
    move(model, slope(model, x, y), -1)
    optimizer.step()


def noise(model, optimizer, x, y):
    slope(model, x, y)
    move(model, [0.01 * torch.randn_like(p) for p in model.parameters()])
    optimizer.zero_grad()
    slope(model, x, y)
    move(model, [0.01 * torch.randn_like(p) for p in model.parameters()], -1)
    optimizer.step()


def accumulated(model, optimizer, x, y):
    for part, goal in zip(x.chunk(2), y.chunk(2), strict=True):
        slope(model, part, goal)
    optimizer.step()


def not_numbers(model, optimizer, x, y):
    """Ends in NaN, which differs from everything and is no place."""
    up(model, optimizer, x, y)
    move(model, [torch.full_like(p, float("nan")) for p in model.parameters()])
    optimizer.step()


def findings(kind):
    def step(model, optimizer, inputs, targets):
        optimizer.zero_grad()
        kind(model, optimizer, *inputs, targets)

    report = Contract(
        model=lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)),
        inputs="B 3",
        targets="B 2",
        batch=((X,), Y),
        loss=F.mse_loss,
        train_step=step,
        optimizer=lambda m: torch.optim.Adam(m.parameters(), lr=1e-2),
    ).check(["step-protocol"])
    return [f for f in report.findings if f.status in ("violated", "suspicious")]


@pytest.mark.parametrize(
    ("kind", "function"),
    [
        (other_way, "move"),
        (twice, "move"),
        (behind_the_counter, "behind_the_counter"),
        (wrapped(right=False), "Sharpness.step"),
    ],
)
def test_weights_that_come_back_elsewhere_are_told_at_the_last_write(kind, function):
    (found,) = findings(kind)
    assert (found.status, found.code) == ("violated", "weights-not-taken-back")
    assert found.location.function == function


def test_weights_that_stay_uphill_are_suspicious():
    (found,) = findings(never)
    assert (found.status, found.code) == ("suspicious", "weights-not-taken-back")


@pytest.mark.parametrize(
    "kind",
    [same_way, after_the_update, copied_back, clipped_and_disturbed, by_hand, noise, accumulated, not_numbers, wrapped(right=True)],
)  # fmt: skip
def test_weights_that_come_back_are_no_finding(kind):
    assert not findings(kind)
