"""Two backward passes of one step with the weights moved between them: what is told of it, and what is not."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract

X, Y = torch.linspace(-1, 1, 24).view(8, 3), torch.linspace(1, -1, 16).view(8, 2)


def passes(model, x, y):
    F.mse_loss(model(x), y).backward()


@torch.no_grad()
def move(model, by):
    for p, way in zip(model.parameters(), by, strict=True):
        p.add_(way)


def ways(model, scale):
    return [scale * p.grad for p in model.parameters()]


def ascent(model, optimizer, x, y, *, cleared=False):
    passes(model, x, y)
    by = ways(model, 0.1)
    move(model, by)
    if cleared:
        optimizer.zero_grad()
    passes(model, x, y)
    move(model, [-w for w in by])


def clears(model, optimizer, x, y):
    ascent(model, optimizer, x, y, cleared=True)


def some_weights(model, optimizer, x, y):
    """Adversarial training of one layer: the sum is meant."""
    passes(model, x, y)
    with torch.no_grad():
        way = 0.1 * model[0].weight.grad
        model[0].weight.add_(way)
    passes(model, x, y)
    with torch.no_grad():
        model[0].weight.sub_(way)


def noise(model, optimizer, x, y):
    """The mean gradient over disturbed weights."""
    passes(model, x, y)
    by = [0.01 * torch.randn_like(p) for p in model.parameters()]
    move(model, by)
    passes(model, x, y)
    move(model, [-w for w in by])


def accumulates(model, optimizer, x, y):
    for part, goal in zip(x.chunk(2), y.chunk(2), strict=True):
        passes(model, part, goal)


def averages(model, optimizer, x, y):
    """Looks at the averaged weights between two passes, and takes its own back."""
    passes(model, x, y)
    own = copy.deepcopy(model.state_dict())
    with torch.no_grad():
        move(model, [0.1 * torch.ones_like(p) for p in model.parameters()])
        model(x)
    model.load_state_dict(own)
    passes(model, x, y)


def extrapolates(model, optimizer, x, y):
    passes(model, x, y)
    optimizer.step()
    optimizer.zero_grad()
    passes(model, x, y)


def findings(kind):
    def step(model, optimizer, inputs, targets):
        optimizer.zero_grad()
        kind(model, optimizer, *inputs, targets)
        optimizer.step()

    report = Contract(
        model=lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)),
        batch=((X,), Y),
        loss=F.mse_loss,
        train_step=step,
        optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=1e-2),
    ).check(["step-protocol"])
    return [f for f in report.findings if f.status in ("violated", "suspicious")]


def test_a_gradient_that_is_added_to_one_taken_before_the_weights_went_uphill_is_suspicious():
    (found,) = findings(ascent)
    assert (found.status, found.code) == ("suspicious", "gradients-of-two-points")
    assert found.location.function == "passes"
    assert found.culprits[1].name == "optimizer.zero_grad"


@pytest.mark.parametrize("kind", [clears, some_weights, noise, accumulates, averages, extrapolates])
def test_sums_that_are_meant_and_gradients_that_are_cleared_are_no_finding(kind):
    assert not findings(kind)
