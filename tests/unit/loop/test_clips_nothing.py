"""A clipping that is given nothing: an iterator that was used up, or a group that is empty on purpose."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract

X, Y = torch.linspace(-1, 1, 24).view(8, 3), torch.linspace(1, -1, 16).view(8, 2)


def findings(clip, make=None):
    def step(model, optimizer, inputs, targets):
        optimizer.zero_grad()
        loss = F.mse_loss(model(*inputs), targets)
        loss.backward()
        clip(model)
        optimizer.step()
        return loss.detach()

    report = Contract(
        model=nn.Linear(3, 2),
        batch=((X,), Y),
        loss=F.mse_loss,
        train_step=step,
        optimizer=make or (lambda m: torch.optim.SGD(m.parameters(), lr=1e-2)),
    ).check(["step-protocol"])
    return [f for f in report.findings if f.status != "passed"]


def test_a_generator_that_the_first_call_used_up():
    class Keeper:
        def make(self, model):
            self.weights = (p for p in model.parameters())
            return torch.optim.SGD(model.parameters(), lr=1e-2)

        def clip(self, model):
            nn.utils.clip_grad_norm_(self.weights, 1.0)

    keeper = Keeper()
    (found,) = findings(keeper.clip, keeper.make)
    assert found.code == "clip-nothing"
    assert found.location.text == "self.weights = (p for p in model.parameters())"
    assert "in an earlier call" in found.cause


def test_an_empty_group_is_no_finding():
    def clip(model):
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        nn.utils.clip_grad_norm_([], 1.0)
        frozen = filter(lambda p: not p.requires_grad, model.parameters())
        nn.utils.clip_grad_norm_(frozen, 1.0)

    assert not findings(clip)
