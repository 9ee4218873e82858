"""Networks that a training step writes instead of training them."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract


class Actor(nn.Module):
    """A critic, and a slow copy of it whose values its training is to follow."""

    def __init__(self):
        super().__init__()
        self.critic = nn.Linear(4, 2)
        self.slow = copy.deepcopy(self.critic)

    def forward(self, x):
        return self.critic(x)


def trained(*, follows):
    def step(model, optimizer, inputs, targets):
        optimizer.zero_grad()
        with torch.no_grad():
            goal = targets + 0.9 * model.slow(*inputs)
        loss = F.mse_loss(model(*inputs), goal)
        loss.backward()
        optimizer.step()
        if follows:
            with torch.no_grad():
                for slow, fast in zip(
                    model.slow.parameters(), model.critic.parameters(), strict=True
                ):
                    slow.lerp_(fast, 0.1)
        return loss

    g = torch.Generator().manual_seed(0)
    contract = Contract(
        model=Actor,
        batch=((torch.randn(6, 4, generator=g),), torch.randn(6, 2, generator=g)),
        loss=F.mse_loss,
        optimizer=lambda model: torch.optim.SGD(model.critic.parameters(), lr=0.1),
        train_step=step,
    )
    return contract.check(["gradients-exist"]).findings[0]


def test_what_the_step_writes_needs_no_gradient():
    finding = trained(follows=True)
    assert finding.status == "passed"
    assert "2 of 4 parameters" in finding.summary
    assert "slow.weight none: the train_step writes" in finding.summary


def test_what_nothing_moves_is_told():
    finding = trained(follows=False)
    assert finding.code == "grad-none"
    assert "slow.weight" in finding.summary


class Opponents(nn.Module):
    """A generator, and a critic whose weights a norm parametrises."""

    def __init__(self, normed):
        super().__init__()
        self.made = nn.Linear(3, 4)
        self.critic = nn.Sequential(normed(nn.Linear(4, 8)), nn.ReLU(), normed(nn.Linear(8, 1)))

    def forward(self, z):
        return self.made(z)


def hinge_step(model, optimizers, inputs, real):
    first, second = optimizers
    fake = model(*inputs)
    loss = (1 - model.critic(real)).relu().mean() + (1 + model.critic(fake.detach())).relu().mean()
    second.zero_grad()
    loss.backward()
    second.step()
    first.zero_grad()
    fooled = -model.critic(model(*inputs)).mean()
    fooled.backward()
    first.step()
    return loss.detach() + fooled.detach()


@pytest.mark.parametrize(
    "normed",
    [nn.utils.spectral_norm, nn.utils.parametrizations.spectral_norm, lambda layer: layer],
    ids=["hook", "parametrization", "plain"],
)
def test_the_shift_of_a_critic_cancels(normed):
    generator = torch.Generator().manual_seed(0)
    z, real = (torch.randn(6, n, generator=generator) for n in (3, 4))
    report = Contract(
        model=lambda: Opponents(normed),
        batch=((z,), real / 10),
        optimizer=lambda m: (
            torch.optim.SGD(m.made.parameters(), 1e-3), torch.optim.SGD(m.critic.parameters(), 1e-3),
        ),
        train_step=hinge_step,
    ).check(["weights-update", "gradients-exist"])  # fmt: skip
    assert report.ok, str(report)
