"""Steps that lose an optimizer's state on the way; other optimizers, schedules and two optimizers keep theirs."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, Finding


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 12), nn.Linear(12, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.body(x)))


def judged(after: Any, optimizer: Any) -> Finding:
    def step(model: nn.Module, made: Any, inputs: Any, targets: Any) -> torch.Tensor:
        def closure() -> torch.Tensor:
            made.zero_grad()
            loss = F.mse_loss(model(*inputs), targets)
            loss.backward()
            return loss

        loss = made.step(closure)
        after(made)
        return loss.detach()

    contract = Contract(
        model=Net,
        batch=((torch.randn(8, 6),), torch.randn(8, 2)),
        optimizer=lambda model: optimizer(model.parameters()),
        train_step=step,
    )
    (found,) = contract.check(["resume"]).findings
    return found


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=1e-3)


def emptied(made: torch.optim.Optimizer) -> None:
    made.state.clear()


def saved_in_part(made: torch.optim.Optimizer) -> None:
    groups = made.state_dict()["param_groups"]
    made.load_state_dict({"state": {}, "param_groups": groups})


def saved_and_loaded(made: torch.optim.Optimizer) -> None:
    file = io.BytesIO()
    torch.save(made.state_dict(), file)
    file.seek(0)
    made.load_state_dict(torch.load(file, weights_only=True))


def copied(made: torch.optim.Optimizer) -> None:
    made.load_state_dict(copy.deepcopy(made.state_dict()))


def untouched(made: torch.optim.Optimizer) -> None:
    pass


class EverySecond:
    """Empties the state after each second step: what each step does alone is not enough."""

    def __init__(self) -> None:
        self.steps = 0

    def __call__(self, made: torch.optim.Optimizer) -> None:
        self.steps += 1
        if self.steps % 2 == 0:
            made.state.clear()


def test_state_that_is_saved_in_part_is_found_with_both_lines() -> None:
    class Partly(EverySecond):
        def __call__(self, made: torch.optim.Optimizer) -> None:
            self.steps += 1
            if self.steps == 2:
                saved_in_part(made)

    found = judged(Partly(), adam)
    assert (found.status, found.code) == ("violated", "optimizer-state-lost")
    lines = [c.location.text for c in found.culprits if c.location is not None]
    assert any("load_state_dict" in line for line in lines)


def test_state_that_is_cleared_now_and_then_is_found() -> None:
    found = judged(EverySecond(), adam)
    assert found.code == "optimizer-state-lost"
    assert found.location is not None
    assert found.location.text == "made.state.clear()"


@pytest.mark.parametrize("after", [saved_and_loaded, copied, untouched])
@pytest.mark.parametrize(
    "optimizer",
    [
        adam,
        lambda p: torch.optim.SGD(p, lr=1e-2),
        lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9),
        lambda p: torch.optim.LBFGS(p, max_iter=2),
    ],
    ids=["Adam", "SGD", "momentum", "LBFGS"],
)
def test_optimizers_that_keep_their_state_are_sound(after: Any, optimizer: Any) -> None:
    assert judged(after, optimizer).code != "optimizer-state-lost"


class Halving:
    """Halves the rate in each step; its state may lack the count that says how far it is."""

    def __init__(self, optimizer: torch.optim.Optimizer, saves: bool) -> None:
        self.optimizer, self.saves = optimizer, saves
        self.taken, self.peak = 0, optimizer.param_groups[0]["lr"]

    def step(self) -> None:
        self.taken += 1
        self.optimizer.param_groups[0]["lr"] = self.peak / 2**self.taken

    def state_dict(self) -> dict[str, int]:
        return {"taken": self.taken} if self.saves else {}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.taken = state.get("taken", 0)


def linear(made: torch.optim.Optimizer) -> Any:
    return torch.optim.lr_scheduler.LinearLR(made, 0.1, total_iters=8)


@pytest.mark.parametrize(
    ("schedule", "late", "status"),
    [
        (linear, False, "passed"),
        (lambda made: Halving(made, saves=True), False, "passed"),
        (lambda made: Halving(made, saves=False), False, "violated"),
        (linear, True, "inconclusive"),
    ],
)
def test_what_hangs_on_an_optimizer_is_saved_with_it(
    schedule: Any, late: bool, status: str
) -> None:
    def made(parameters: Any) -> Any:
        optimizer: Any = adam(parameters)
        if not late:
            optimizer.schedule = schedule(optimizer)
        return optimizer

    def after(optimizer: Any) -> None:
        if not hasattr(optimizer, "schedule"):
            optimizer.schedule = schedule(optimizer)
        optimizer.schedule.step()

    found = judged(after, made)
    assert found.status == status, str(found)
    assert "optimizer.schedule" in str(found)
