"""Schedulers whose steps change no rate that is used; schedules of all kinds that do are not blamed."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, Labels

lr = torch.optim.lr_scheduler


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 12), nn.Linear(12, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.body(x)))


def told(optimizer, step):
    contract = Contract(
        model=Net,
        inputs="B 6",
        targets=Labels("B", classes=3),
        optimizer=optimizer,
        train_step=step,
    )
    found = contract.check(["scheduler-order"]).findings
    return [(f.status, f.code) for f in found if f.status in ("violated", "suspicious", "error")]


def descend(model, optimizer, inputs, targets):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(*inputs), targets)
    loss.backward()
    optimizer.step()
    return loss.detach()


def both(model, made, inputs, targets):
    optimizer, schedule = made
    loss = descend(model, optimizer, inputs, targets)
    schedule.step()
    return loss


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def replaced(model):
    schedule = lr.ExponentialLR(sgd(model), 0.9)
    return torch.optim.Adam(model.parameters(), lr=0.01), schedule


def never(model, made, inputs, targets):
    return descend(model, made[0], inputs, targets)


def remade(model, optimizer, inputs, targets):
    schedule = lr.LinearLR(optimizer, 0.1, 1.0, 5)
    loss = descend(model, optimizer, inputs, targets)
    schedule.step()
    return loss


def shrinking(model, optimizer, inputs, targets):
    loss = descend(model, optimizer, inputs, targets)
    for group in optimizer.param_groups:
        group["lr"] *= 0.01
    return loss


def cosine(model):
    made = sgd(model)
    return made, lr.CosineAnnealingLR(made, 100)


@pytest.mark.parametrize(
    ("optimizer", "step", "expected"),
    [
        (replaced, both, ("violated", "scheduler-idle")),
        (cosine, never, ("suspicious", "scheduler-idle")),
        (sgd, remade, ("suspicious", "scheduler-idle")),
        (sgd, shrinking, ("suspicious", "rate-vanishes")),
    ],
)
def test_a_schedule_that_changes_nothing_is_told(optimizer, step, expected):
    assert told(optimizer, step) == [expected]


def sequence(model):
    made = sgd(model)
    parts = [lr.LinearLR(made, 0.1, total_iters=2), lr.ExponentialLR(made, 0.9)]
    return made, lr.SequentialLR(made, parts, milestones=[2])


def plateau(model):
    made = sgd(model)
    return made, lr.ReduceLROnPlateau(made)


class Wrapper(torch.optim.Optimizer):
    """Steps another optimizer, whose groups are its own, as those of accelerators do."""

    def __init__(self, inner) -> None:
        self.inner = inner
        super().__init__([p for g in inner.param_groups for p in g["params"]], inner.defaults)
        self.param_groups = inner.param_groups

    def step(self, closure=None):
        return self.inner.step(closure)


def wrapped(model):
    inner = sgd(model)
    return Wrapper(inner), lr.ExponentialLR(inner, 0.9)


def copied(model):
    """Takes the rate from an optimizer that is there for its schedule alone."""
    shadow = sgd(model)
    return torch.optim.Adam(model.parameters(), lr=0.1), lr.ExponentialLR(shadow, 0.9)


def with_copied_rate(model, made, inputs, targets):
    optimizer, schedule = made
    for group in optimizer.param_groups:
        group["lr"] = schedule.get_last_lr()[0]
    return both(model, made, inputs, targets)


class Alternating:
    """Steps the head's optimizer every tenth time, and its schedule each time."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, model, made, inputs, targets):
        (body, head), schedule = made
        self.count += 1
        loss = descend(model, body, inputs, targets)
        if self.count % 10 == 0:
            head.step()
        schedule.step()
        return loss


def halves(model):
    parts = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (model.body, model.head)]
    return parts, lr.ExponentialLR(parts[1], 0.9)


@pytest.mark.parametrize(
    ("optimizer", "step"),
    [
        (cosine, both),
        (sequence, both),
        (plateau, never),
        (wrapped, both),
        (copied, with_copied_rate),
        (halves, Alternating()),
        (sgd, descend),
    ],
)
def test_schedules_that_are_used_pass(optimizer, step):
    assert not told(optimizer, step)
