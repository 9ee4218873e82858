"""A step may hold optimizers of its own, and a critic's last bias has no influence on differences of scores."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from pytest_torchcheck import Contract


class Pair(nn.Module):
    """Makes rows, and scores them."""

    def __init__(self) -> None:
        super().__init__()
        self.maker = nn.Sequential(nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, 7))
        self.scorer = nn.Sequential(nn.Linear(7, 12), nn.LeakyReLU(0.2), nn.Linear(12, 1))

    def forward(self, noise: torch.Tensor) -> torch.Tensor:
        return self.maker(noise)


def duel(*, holds: str = "scorer", scale: float = 1.0) -> Contract:
    """Train two parts by turns; the scorer's optimizer is the step's own, and holds one of the parts."""
    own: dict[str, torch.optim.Optimizer] = {}

    def optimizer(model: Any) -> torch.optim.Optimizer:
        own["scorer"] = torch.optim.SGD(getattr(model, holds).parameters(), lr=0.05)
        return torch.optim.SGD(model.maker.parameters(), lr=0.05)

    def step(model: Any, optimizer: Any, inputs: Any, targets: Any) -> torch.Tensor:
        own["scorer"].zero_grad()
        difference = model.scorer(model(*inputs).detach()).mean() - model.scorer(targets).mean()
        (scale * difference).backward()
        own["scorer"].step()
        optimizer.zero_grad()
        loss = -model.scorer(model(*inputs)).mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Contract(
        model=Pair, inputs="B 5", sizes={"B": 6}, targets="B 7", optimizer=optimizer,
        train_step=step,
    )  # fmt: skip


CHECKS = ["optimizer-coverage", "weights-update"]


def test_what_an_optimizer_of_the_step_holds_is_trained() -> None:
    report = duel().check(CHECKS)
    assert report.ok, str(report)


def test_what_no_optimizer_holds_is_told() -> None:
    found = _violated(duel(holds="maker").check(CHECKS))
    assert {f.code for f in found} == {"optimizer-missing", "weight-static"}
    assert all(name.startswith("scorer.") for f in found for name in _parameters(f))


def test_weights_to_which_the_step_applies_zeros_are_told() -> None:
    (found,) = _violated(duel(scale=0.0).check(["weights-update"]))
    assert "scorer.0.weight" in _parameters(found)


def _violated(report: Any) -> list[Any]:
    return [found for found in report.findings if found.status == "violated"]


def _parameters(found: Any) -> list[str]:
    return [c.name for c in found.culprits if c.kind == "parameter"]


class Stages(nn.Module):
    """Keeps its first stage in evaluation mode, and sets the mode of the others."""

    def __init__(self, *, skips: bool) -> None:
        super().__init__()
        self.skips = skips
        self.stages = nn.ModuleList(
            nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)) for _ in range(3)
        )

    def train(self, mode: bool = True) -> Stages:
        self.training = mode
        if not self.skips:
            self.stages[:1].eval()
        self.stages[1:].train(mode)
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for stage in self.stages:
            x = stage(x)
        return x


@pytest.mark.parametrize("skips", [False, True])
def test_the_flag_of_a_list_of_modules_decides_nothing(skips: bool) -> None:
    report = Contract(model=lambda: Stages(skips=skips), inputs="B 4", sizes={"B": 6}).check(
        ["mode-flags"]
    )
    assert report.ok is not skips
    for found in _violated(report):
        assert found.code == "mode-stuck"
        assert "leaves stages.0, stages.0.1 in" in found.summary


@pytest.mark.parametrize("both", [True, False])
def test_an_optimizer_that_is_never_stepped_is_named(both: bool) -> None:
    def optimizers(model: Any) -> tuple[torch.optim.Optimizer, ...]:
        return (
            torch.optim.SGD(model.maker.parameters(), lr=0.05),
            torch.optim.Adam(model.scorer.parameters(), lr=0.01),
        )

    def step(model: Any, made: Any, inputs: Any, targets: Any) -> torch.Tensor:
        for one in made:
            one.zero_grad()
        loss = (model.scorer(model(*inputs)) - targets).square().mean()
        loss.backward()
        for one in made[: 2 if both else 1]:
            one.step()
        return loss.detach()

    report = Contract(
        model=Pair, inputs="B 5", sizes={"B": 6}, targets="B 1", optimizer=optimizers,
        train_step=step,
    ).check(["weights-update"])  # fmt: skip
    assert report.ok is both
    for found in report.failing:
        assert "number 2 of 2 (Adam), is never stepped" in found.cause
        assert "step() of this optimizer" in found.fix
