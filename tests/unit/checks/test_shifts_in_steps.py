"""A bias that shifts all scores alike has no influence where a step compares scores, whatever rounding leaves of its gradient."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract


class Pair(nn.Module):
    def __init__(self, level):
        super().__init__()
        self.maker = nn.Sequential(nn.Linear(3, 12), nn.Tanh(), nn.Linear(12, 2))
        self.judge = nn.Sequential(nn.Linear(2, 12), nn.Tanh(), nn.Linear(12, 1))
        nn.init.constant_(self.judge[-1].bias, level)

    def forward(self, z):
        return self.maker(z)


def compared(model, optimizer, inputs, real):
    optimizer.zero_grad()
    fake = model(*inputs)
    apart = model.judge(real).detach() - model.judge(fake)
    F.softplus(apart).mean().backward(inputs=list(model.maker.parameters()))
    gaps = model.judge(real) - model.judge(fake.detach()).mean(0, keepdim=True)
    others = model.judge(fake.detach()) - model.judge(real).mean(0, keepdim=True)
    (F.softplus(-gaps).mean() + F.softplus(others).mean()).backward()
    optimizer.step()


def codes(step, rate=0.05, level=3.0, frozen=0.0):
    def optimizer(model):
        last = [model.judge[-1].bias]
        rest = [p for p in model.parameters() if p is not last[0]]
        return torch.optim.SGD([{"params": rest}, {"params": last, "lr": frozen or rate}], lr=rate)

    contract = Contract(
        model=lambda: Pair(level),
        batch=lambda seed: (
            (torch.randn(8, 3, generator=torch.Generator().manual_seed(seed)),),
            torch.randn(8, 2, generator=torch.Generator().manual_seed(seed + 1)),
        ),
        train_step=step,
        optimizer=optimizer,
    )
    return [f.code for f in contract.check(["weights-update"]).findings if f.status == "violated"]


@pytest.mark.parametrize("level", [0.0, 3.0, 40.0])
def test_a_level_of_scores_that_are_compared_is_free(level):
    assert codes(compared, level=level) == []


def alone(model, optimizer, inputs, real):
    """The scores count by themselves, and so does their level."""
    optimizer.zero_grad()
    fake = model(*inputs)
    F.softplus(-model.judge(fake)).mean().backward(inputs=list(model.maker.parameters()))
    F.softplus(model.judge(fake.detach())).mean().backward()
    optimizer.step()


def test_a_bias_that_counts_and_stands_still_is_told():
    assert codes(alone) == []
    assert codes(alone, frozen=1e-12) == ["weight-static"]
