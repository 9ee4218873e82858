"""A scheduler that is stepped when its optimizer has got another parameter group."""

from __future__ import annotations

from typing import Any

import pytest
from provoke import explain, line
from torch import nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import OneCycleLR, ReduceLROnPlateau

BODY, HEAD = nn.Linear(3, 3), nn.Linear(3, 2)


def unfreeze(optimizer: Optimizer) -> None:
    optimizer.add_param_group({"params": BODY.parameters(), "lr": 0.01})


def one_cycle(optimizer: Optimizer) -> Any:
    return OneCycleLR(optimizer, max_lr=0.1, total_steps=9)


def plateau(optimizer: Optimizer) -> Any:
    return ReduceLROnPlateau(optimizer, min_lr=[1e-4], patience=0)


@pytest.mark.parametrize("make", [one_cycle, plateau])
def test_a_group_that_the_scheduler_does_not_know(make: Any) -> None:
    def run() -> None:
        optimizer = SGD(HEAD.parameters(), lr=0.1, momentum=0.9)
        scheduler = make(optimizer)
        unfreeze(optimizer)
        for loss in (1.0, 2.0, 3.0):
            optimizer.step()
            scheduler.step(*([loss] if make is plateau else []))

    found = explain(run, phase="step")
    assert found.code == "scheduler-groups"
    assert found.location is not None
    assert found.location.line == line(unfreeze, "add_param_group")
    assert "2 parameter groups" in found.summary


def test_another_error_of_a_scheduler_is_not_of_its_groups() -> None:
    def run() -> None:
        optimizer = SGD(HEAD.parameters(), lr=0.1, momentum=0.9)
        scheduler = one_cycle(optimizer)
        for _ in range(20):
            optimizer.step()
            scheduler.step()

    assert explain(run, phase="step").code != "scheduler-groups"
