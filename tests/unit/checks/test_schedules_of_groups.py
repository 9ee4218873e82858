"""A group or scheduler that is left behind is named; rates of a group's own and schedules by epoch are not."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR, StepLR

from pytest_torchcheck import Contract, Finding, promises

X = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(5, 4), nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.right(self.left(x).tanh())


def told(optimizer: Any, step: Any) -> list[Finding]:
    torch.manual_seed(0)
    contract = Contract(
        model=Pair, batch=((X,), X), loss=F.mse_loss, optimizer=optimizer, train_step=step
    )
    findings = contract.check(checks=["scheduler-order"]).findings
    return [f for f in findings if f.status in ("violated", "suspicious", "error")]


def groups(model: Pair, **own: Any) -> torch.optim.Optimizer:
    made = torch.optim.Adam(
        [{"params": model.left.parameters()}, {"params": model.right.parameters(), **own}], lr=1e-3
    )
    made.taken = 0  # type: ignore[attr-defined]
    return made


def descend(model: Pair, inputs: Any, targets: Any, *optimizers: Any) -> torch.Tensor:
    for each in optimizers:
        each.zero_grad()
    loss = F.mse_loss(model(*inputs), targets)
    loss.backward()
    for each in optimizers:
        each.step()
    return loss


def one_group(model: Pair, made: Any, inputs: Any, targets: Any) -> torch.Tensor:
    made.taken += 1
    made.param_groups[0]["lr"] = 1e-3 / made.taken  # HERE
    return descend(model, inputs, targets, made)


def each_group(model: Pair, made: Any, inputs: Any, targets: Any) -> torch.Tensor:
    made.taken += 1
    for group in made.param_groups:
        group["lr"] = 1e-3 / made.taken
    return descend(model, inputs, targets, made)


def two(model: Pair, kinds: Any) -> Any:
    halves = model.left, model.right
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in halves]
    return optimizers, [kind(each) for kind, each in zip(kinds, optimizers, strict=True)]


def first_schedule(model: Pair, made: Any, inputs: Any, targets: Any) -> torch.Tensor:
    loss = descend(model, inputs, targets, *made[0])
    made[1][0].step()  # HERE
    return loss


def cosine(optimizer: Any) -> CosineAnnealingLR:
    return CosineAnnealingLR(optimizer, 50)


def by_epoch(optimizer: Any) -> StepLR:
    return StepLR(optimizer, 10)


def test_a_rate_that_is_set_for_the_first_group_alone_is_named() -> None:
    (finding,) = told(groups, one_group)
    assert (finding.status, finding.code) == ("violated", "rate-of-one-group")
    assert finding.location is not None
    assert finding.location.text.endswith("# HERE")


def test_the_scheduler_that_no_step_advances_is_named() -> None:
    (finding,) = told(lambda model: two(model, (cosine, cosine)), first_schedule)
    assert (finding.status, finding.code) == ("violated", "scheduler-idle")
    assert finding.location is not None
    assert finding.location.text.endswith("# HERE")


@pytest.mark.parametrize(
    ("optimizer", "step"),
    [
        (groups, each_group),
        (lambda model: groups(model, lr=5e-4), one_group),  # a rate of its own may be kept
        (lambda model: two(model, (LinearLR, by_epoch)), first_schedule),  # the other by epoch
    ],
)
def test_schedules_that_may_be_meant_are_silent(optimizer: Any, step: Any) -> None:
    assert told(optimizer, step) == []


def in_turn(period: int) -> Any:
    def made(model: Pair) -> Any:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        warm = LinearLR(optimizer, start_factor=0.5, total_iters=4)
        rest = CosineAnnealingLR(optimizer, T_max=period)  # HERE
        optimizer.by_turns = SequentialLR(optimizer, [warm, rest], milestones=[4])  # type: ignore[attr-defined]
        return optimizer

    return made


def rate(step: int) -> float:
    if step < 4:
        return 0.1 * (0.5 + 0.125 * step)
    return 0.05 * (1 + math.cos(math.pi * (step - 4) / 20))


def by_turns(model: Pair, made: Any, inputs: Any, targets: Any) -> torch.Tensor:
    loss = descend(model, inputs, targets, made)
    made.by_turns.step()
    return loss


def scheduled(period: int) -> list[Finding]:
    contract = Contract(
        model=Pair, batch=((X,), X), loss=F.mse_loss, optimizer=in_turn(period), train_step=by_turns,
        promises=(promises.Schedule([rate(n) for n in range(12)]),),
    )  # fmt: skip
    return [f for f in contract.check(checks=["schedule"]).findings if f.status != "passed"]


def test_of_schedulers_in_turn_the_one_whose_turn_it_is_is_named() -> None:
    (finding,) = scheduled(period=5)
    assert (finding.status, finding.code) == ("violated", "schedule-differs")
    assert finding.location is not None
    assert finding.location.text.endswith("# HERE")
    assert "by_turns.step" in {c.name.partition(".")[2] for c in finding.culprits}


def test_schedulers_in_turn_that_give_the_declared_rates() -> None:
    assert scheduled(period=20) == []


def sets_rates(model: Pair, made: Any, inputs: Any, targets: Any) -> torch.Tensor:
    for group in made.param_groups:
        group["lr"] = 1e-3 * 0.5**made.taken * group.get("scale", 1.0) or 0.02
    made.taken += 1
    return descend(model, inputs, targets, made)


@pytest.mark.parametrize(
    ("own", "says"),
    [
        ({}, r"^\d+ steps of all 2 groups used the declared learning rates, 0\.001 to [\de.-]+$"),
        (
            {"scale": 10.0},
            r"^\d+ steps of group 0 used the .*; group 1 goes from 0\.01 to [\de.-]+$",
        ),
        ({"scale": 0.0}, r"^\d+ steps of group 0 used the .*; group 1 keeps 0\.02$"),
    ],
)
def test_a_schedule_that_passes_says_which_groups_follow_it(own: Any, says: str) -> None:
    made = Contract(
        model=Pair, batch=((X,), X), loss=F.mse_loss, train_step=sets_rates,
        optimizer=lambda model: groups(model, lr=0.02, **own),
        promises=(promises.Schedule(lambda step: 1e-3 * 0.5**step),),
    )  # fmt: skip
    (found,) = made.check(checks=["schedule"]).findings
    assert found.status == "passed", str(found)
    assert re.search(says, found.summary), found.summary
