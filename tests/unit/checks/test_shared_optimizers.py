"""A parameter in two optimizers is a mistake where both apply one gradient, and none where each has its own loss."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from pytest_torchcheck import Contract

X = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))


class Agent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.actor, self.critic = nn.Linear(4, 8), nn.Linear(8, 3), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = self.body(x).tanh()
        return self.actor(h), self.critic(h)


def optimizers(model: Any) -> tuple[torch.optim.Optimizer, ...]:
    heads = (model.actor, model.critic)
    return tuple(
        torch.optim.SGD([*model.body.parameters(), *head.parameters()], lr=0.1) for head in heads
    )


def together(model: Any, made: Any, inputs: Any, _: Any) -> Any:
    for optimizer in made:
        optimizer.zero_grad()
    policy, value = model(*inputs)
    loss = policy.square().mean() + (value - 1).square().mean()
    loss.backward()
    for optimizer in made:
        optimizer.step()
    return loss.detach()


def apart(model: Any, made: Any, inputs: Any, _: Any) -> Any:
    for place, optimizer in enumerate(made):
        model.zero_grad()
        loss = (model(*inputs)[place] - place).square().mean()
        loss.backward()
        optimizer.step()
    return loss.detach()


def found(step: Any) -> Any:
    torch.manual_seed(0)
    contract = Contract(model=Agent(), batch=((X,), None), optimizer=optimizers, train_step=step)
    (finding,) = contract.check(["optimizer-coverage"]).findings
    return finding


def test_one_gradient_applied_by_two_optimizers_is_found() -> None:
    finding = found(together)
    assert (finding.status, finding.code) == ("violated", "optimizer-twice")
    assert [culprit.name for culprit in finding.culprits] == ["body.bias", "body.weight"]
    assert finding.location is not None
    assert "optim.SGD(" in finding.location.text


def test_two_losses_may_train_what_they_share() -> None:
    finding = found(apart)
    assert finding.status == "passed"
    assert "several hold 2 of them" in finding.summary
