"""An optimizer that sets its own learning rate within its step may use the one from before, or the new one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from loop_bugs import Net, task

from pytest_torchcheck import Contract, promises

LR, DECAY = 0.1, 0.9


class Decaying(torch.optim.SGD):
    """Decays its rate in each step, before it updates."""

    def step(self, closure=None):
        for group in self.param_groups:
            group["lr"] *= DECAY
        return super().step(closure)


class DecayingAfterwards(torch.optim.SGD):
    def step(self, closure=None):
        loss = super().step(closure)
        for group in self.param_groups:
            group["lr"] *= DECAY
        return loss


class DecayingForEach(torch.optim.SGD):
    """Decays its rate once for each parameter."""

    def step(self, closure=None):
        for group in self.param_groups:
            for _ in group["params"]:
                group["lr"] *= DECAY  # BUG
        return super().step(closure)


class Scheduled(torch.optim.SGD):
    """Steps a scheduler of torch's itself, after its update."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self, DECAY)

    def step(self, closure=None):
        loss = super().step(closure)
        if hasattr(self, "scheduler"):
            self.scheduler.step()
        return loss


def train_step(model, optimizer, inputs, targets):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(*inputs), targets)
    loss.backward()
    optimizer.step()
    return loss.detach()


def found(kind: Any, first: int) -> Any:
    torch.optim.SGD(
        [torch.zeros(1, requires_grad=True)]
    )  # torch then tells of its step within a subclass's too
    declared = task(
        Net, train_step, optimizer=lambda m: kind(m.parameters(), lr=LR),
        promises=(promises.Schedule([LR * DECAY ** (n + first) for n in range(12)]),),
    )  # fmt: skip
    (finding,) = Contract(**declared).check(["schedule"]).findings
    return finding


@pytest.mark.parametrize(
    ("kind", "first"),
    [(Decaying, 0), (Decaying, 1), (DecayingAfterwards, 0), (DecayingAfterwards, 1)],
)
def test_the_rate_of_a_step_is_the_one_it_begins_or_ends_with(kind: Any, first: int) -> None:
    finding = found(kind, first)
    assert finding.status == "passed", finding
    assert f"{LR * DECAY**first:g} to {LR * DECAY ** (11 + first):g}" in finding.summary


@pytest.mark.parametrize("first", [0, 1])
def test_a_rate_that_decays_for_each_parameter_is_found(first: int) -> None:
    finding = found(DecayingForEach, first)
    assert (finding.status, finding.code) == ("violated", "schedule-differs")
    assert finding.location is not None
    assert finding.location.text.endswith("# BUG")
    assert finding.cause.startswith("the rates are set 4 times in one step")
    assert finding.culprits[0].name == "lr"


def test_a_scheduler_that_the_optimizer_steps_sets_the_rate_of_the_next_step() -> None:
    assert found(Scheduled, 0).status == "passed"
    late = found(Scheduled, 1)
    assert (late.status, late.code) == ("violated", "schedule-differs")
    assert late.cause == "the schedule runs one step behind"
