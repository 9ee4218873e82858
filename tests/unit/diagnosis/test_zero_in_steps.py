"""A gradient that is zero within the step: of a tensor beside itself, of a direction that has taken one step, of a schedule that runs ahead."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, Labels, promises


class Policy(nn.Module):
    """Scores three moves, and values the state."""

    def __init__(self) -> None:
        super().__init__()
        self.moves, self.value = nn.Linear(5, 3), nn.Linear(5, 1)

    def forward(self, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.moves(state), self.value(state)


def update(model: Any, optimizer: Any, inputs: Any, targets: Any, *, detached: bool) -> Any:
    scores, value = model(*inputs)
    now = scores.log_softmax(-1)[:, 0]
    before = now  # one tensor
    if detached:
        before = before.detach()
    gain = ((now - before).exp() * targets).mean()
    loss = (value.squeeze(-1) - targets).square().mean() - gain
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


@pytest.mark.parametrize("detached", [True, False])
def test_a_tensor_beside_itself_gives_a_step_no_gradient(detached: bool) -> None:
    def step(*given: Any) -> Any:
        return update(*given, detached=detached)

    report = Contract(
        model=Policy, inputs="B 5", sizes={"B": 6}, targets="B", train_step=step,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    ).check(["weights-update"])  # fmt: skip
    assert report.ok is detached
    for found in report.failing:
        assert found.location.text == "before = now  # one tensor"
        assert "before is now itself" in found.cause
        assert [c.name for c in found.culprits if c.kind == "parameter"] == [
            "moves.weight", "moves.bias",
        ]  # fmt: skip


class Reader(nn.Module):
    """Reads a sequence in both directions."""

    def __init__(self, *, last: bool) -> None:
        super().__init__()
        self.last = last
        self.read = nn.LSTM(4, 6, batch_first=True, bidirectional=True)
        self.head = nn.Linear(12, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states, (final, _) = self.read(x)
        summary = final.transpose(0, 1).flatten(1)
        if self.last:
            summary = states[:, -1]
        return self.head(summary)


@pytest.mark.parametrize("last", [False, True])
def test_the_line_that_reads_one_position_of_both_directions_is_named(last: bool) -> None:
    report = Contract(
        model=lambda: Reader(last=last), inputs="B T 4", sizes={"B": 4, "T": 7},
        targets=Labels("B", classes=3), loss=F.cross_entropy,
    ).check(["gradients-exist"])  # fmt: skip
    assert report.ok is not last
    for found in report.failing:
        assert found.location.text == "summary = states[:, -1]"
        assert (
            "Tensor.__getitem__ reads 48 of the 336 elements that torch.lstm gives" in found.because
        )


def warm(optimizer: Any) -> None:
    for group in optimizer.param_groups:
        group["done"] += 1
        group["lr"] = 0.01 * (group["done"] + 1)


@pytest.mark.parametrize("often", [False, True])
def test_a_schedule_that_advances_with_every_part_is_told_where_it_is_called(often: bool) -> None:
    def step(model: Any, optimizer: Any, inputs: Any, targets: Any) -> Any:
        optimizer.zero_grad()
        for x, y in zip(inputs[0].chunk(3), targets.chunk(3), strict=True):
            loss = (model(x) - y).square().sum() / targets.numel()
            loss.backward()
            if often:
                warm(optimizer)  # each time
        optimizer.step()
        if not often:
            warm(optimizer)
        return loss.detach()

    report = Contract(
        model=lambda: nn.Linear(4, 2), inputs="B 4", sizes={"B": 6}, targets="B 2", train_step=step,
        optimizer=lambda model: torch.optim.SGD(
            [{"params": list(model.parameters()), "done": 0}], lr=0.01
        ),
        promises=[promises.Schedule([0.01 * (n + 1) for n in range(60)])],
    ).check(["schedule"])  # fmt: skip
    assert report.ok is not often
    for found in report.failing:
        assert found.location.text == "warm(optimizer)  # each time"
        assert "advances 3 positions in each step" in found.cause


class Stages(nn.Module):
    """Stacks the results of three layers."""

    def __init__(self, *, first: bool) -> None:
        super().__init__()
        self.first = first
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for layer in self.layers:
            x = layer(x).tanh()
            kept.append(x)
        every = torch.stack(kept)
        if self.first:
            every = every[0]  # one of three
        return every


@pytest.mark.parametrize("first", [False, True])
def test_the_line_that_picks_a_part_of_what_is_stacked_is_named(first: bool) -> None:
    report = Contract(
        model=lambda: Stages(first=first), inputs="B 4", sizes={"B": 5},
        loss=lambda output: output.square().mean(),
    ).check(["gradients-exist"])  # fmt: skip
    assert report.ok is not first
    for found in report.failing:
        assert found.location.text == "every = every[0]  # one of three"


def test_a_declared_schedule_may_end() -> None:
    rates = [0.01 * (n + 1) for n in range(60)]

    def step(model: Any, optimizer: Any, inputs: Any, targets: Any) -> Any:
        optimizer.zero_grad()
        loss = (model(*inputs) - targets).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    report = Contract(
        model=lambda: nn.Linear(4, 2), inputs="B 4", sizes={"B": 6}, targets="B 2", train_step=step,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.01),
        promises=[promises.Schedule(lambda step: rates[step])],
    ).check(["schedule"])  # fmt: skip
    (found,) = report.failing
    assert (found.status, found.code) == ("violated", "schedule-differs")
