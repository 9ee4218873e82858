"""A few samples are learnt by the last layer alone where that is enough, and by all layers where it is not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, Overfit

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_torchcheck.findings import Finding

X, Y = torch.randn(6, 8, generator=torch.Generator().manual_seed(3)), torch.arange(6) % 3


def found(make: Callable[[], nn.Module], *, descent: bool = True, **declared: object) -> Finding:
    contract = Contract(
        model=make,
        batch=((X,), declared.pop("targets", Y)),
        loss=declared.pop("loss", F.cross_entropy),
        optimizer=lambda m: torch.optim.Adam(m.parameters(), lr=1e-2),
        **declared,  # type: ignore[arg-type]
    )
    report = contract.check(["backward", *(["descent"] if descent else []), "overfit"])
    return next(f for f in report.findings if f.check == "overfit")


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))


def test_the_last_layer_alone_comes_first() -> None:
    finding = found(plain)
    assert finding.status == "passed"
    assert "on 2 alone, for a few samples" in finding.summary


def test_regression_is_learnt_by_it_too() -> None:
    finding = found(
        lambda: nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2)),
        targets=X[:, :2] * 2,
        loss=F.mse_loss,
    )
    assert finding.status == "passed"
    assert "on 2 alone" in finding.summary


def test_all_layers_are_trained_where_descent_has_not_looked() -> None:
    finding = found(plain, descent=False)
    assert finding.status == "passed"
    assert "alone" not in finding.summary


def test_all_layers_are_trained_where_steps_are_declared() -> None:
    finding = found(plain, overfit=Overfit(steps=200))
    assert finding.status == "passed"
    assert "alone" not in finding.summary


class Tied(nn.Module):
    """Scores by the weights of the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(8, 3)
        self.leave = nn.Linear(8, 3)
        self.leave.weight = self.enter.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.leave(x + self.enter(x) @ self.enter.weight)


class Twice(nn.Module):
    """Calls the same layer twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(torch.relu(self.layer(x)))


class Scaled(nn.Module):
    """Its output is no layer's."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * 2


@pytest.mark.parametrize("make", [Tied, Twice, Scaled])
def test_what_no_layer_makes_alone_is_learnt_by_all(make: Callable[[], nn.Module]) -> None:
    finding = found(make)
    assert finding.status == "passed"
    assert "alone" not in finding.summary


class Blind(nn.Module):
    """The first layer loses what tells samples apart."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.leave(torch.softmax(self.enter(x), 0).mean(0).expand(len(x), -1))


def test_samples_that_the_last_layer_cannot_tell_apart_are_not_learnt_by_it() -> None:
    finding = found(Blind)
    assert finding.status == "violated"
    assert finding.code == "overfit-stuck"
