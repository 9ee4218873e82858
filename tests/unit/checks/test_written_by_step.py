"""Networks that a training step writes instead of training them."""

from __future__ import annotations

import copy

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
