"""An optimizer that steps as soon as a gradient is there, within backward, does not step before it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract

X, Y = torch.linspace(-1, 1, 40).view(8, 5), torch.arange(8) % 3


class AtOnce(torch.optim.Optimizer):
    """Has an optimizer for each parameter, which a hook steps and clears."""

    def __init__(self, parameters):
        parameters = list(parameters)
        self.own = {p: torch.optim.SGD([p], lr=0.1) for p in parameters}
        super().__init__(parameters, {})
        for p in parameters:
            p.register_post_accumulate_grad_hook(self.apply)

    def apply(self, parameter):
        self.own[parameter].step()
        self.own[parameter].zero_grad()

    def step(self, closure=None):
        """Has nothing left to do."""

    def zero_grad(self, set_to_none=True):
        """Has nothing left to clear."""


def protocol(make, first):
    def step(model, optimizer, inputs, targets):
        if first:
            optimizer.step()
        loss = F.cross_entropy(model(*inputs), targets)
        loss.backward()
        return loss.detach()

    contract = Contract(
        model=lambda: nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)),
        batch=((X,), Y),
        loss=F.cross_entropy,
        optimizer=make,
        train_step=step,
    )
    found = contract.check(["step-protocol"]).findings
    return [f.code for f in found if f.status == "violated"]


def test_steps_within_backward_come_in_time():
    assert protocol(lambda m: AtOnce(m.parameters()), first=False) == []


def test_steps_before_backward_do_not():
    assert "step-before-backward" in protocol(
        lambda m: torch.optim.SGD(m.parameters(), lr=0.1), first=True
    )
