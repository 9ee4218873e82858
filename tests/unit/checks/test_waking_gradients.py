"""Weights behind zeros: their gradient grows from step to step, and is at first too small to move them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract


class Zeroed(nn.Module):
    """A residual network whose head and branches begin at zero."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(6, 12)
        self.scales = nn.ModuleList(nn.LayerNorm(12) for _ in range(2))
        self.branches = nn.ModuleList(
            nn.Sequential(nn.Linear(12, 24), nn.GELU(), nn.Linear(24, 12)) for _ in range(2)
        )
        self.gains = nn.ParameterList(nn.Parameter(torch.zeros(12)) for _ in range(2))
        self.head = nn.Linear(12, 3)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x):
        h = self.stem(x)
        for scale, branch, gain in zip(self.scales, self.branches, self.gains, strict=True):
            h = h + gain * branch(1e-3 * scale(h))
        return self.head(h)


def found(momentum, step=None, *, forgotten=False):
    def optimizer(model):
        left_out = model.scales[0].weight if forgotten else None
        return torch.optim.SGD(
            [p for p in model.parameters() if p is not left_out], lr=0.05, momentum=momentum
        )

    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(8, 6, generator=generator), torch.arange(8) % 3
    report = Contract(
        model=Zeroed,
        batch=((x,), y),
        loss=F.cross_entropy,
        optimizer=optimizer,
        train_step=step,
    ).check(["weights-update"])
    return report.findings[0]


def own_step(model, optimizer, inputs, targets):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(*inputs), targets)
    loss.backward()
    optimizer.step()
    return loss.detach()


@pytest.mark.parametrize("step", [None, own_step], ids=["plain", "own"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_weights_whose_gradient_grows_are_no_standstill(momentum, step):
    assert found(momentum, step).status == "passed"


@pytest.mark.parametrize("step", [None, own_step], ids=["plain", "own"])
def test_a_weight_that_the_optimizer_lacks_stays_one(step):
    one = found(0.0, step, forgotten=True)
    assert one.status == "violated"
    assert "scales.0.weight" in one.summary
