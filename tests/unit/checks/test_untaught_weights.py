"""A weight that the data reach through one number only is trained by nothing; weights that come near it are sound."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract

_DRAW = torch.Generator().manual_seed(11)
X, R = torch.randn(8, 6, generator=_DRAW), torch.randn(8, 2, generator=_DRAW)
Y = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])


def found(model: Any, loss: Any = F.mse_loss, batch: Any = ((X,), R), **fields: Any) -> list[Any]:
    report = Contract(model=model, batch=batch, loss=loss, **fields).check("weights-update")
    return [f for f in report.findings if f.status != "passed"]


class Touched(nn.Module):
    """Touches a layer by a number, so that it has a gradient."""

    def __init__(self, number: Any) -> None:
        super().__init__()
        self.number, self.head = number, nn.Linear(6, 2)
        self.unused = nn.Linear(6, 6, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x) + 1e-4 * self.number(self.unused.weight)


class OfConstants(nn.Module):
    """A part that never gets the input."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.aside = nn.Linear(6, 2), nn.Linear(9, 4, bias=False)
        self.register_buffer("ones", torch.ones(1, 9))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x) * (1 + self.aside(self.ones).mean())


@pytest.mark.parametrize(
    ("model", "name", "reader"),
    [
        (lambda: Touched(torch.mean), "unused.weight", "torch.mean"),
        (lambda: Touched(torch.linalg.norm), "unused.weight", "torch.linalg.norm"),
        (lambda: Touched(lambda w: w.abs().sum()), "unused.weight", "Tensor.sum"),
        (OfConstants, "aside.weight", "Tensor.mean"),
    ],
    ids=["mean", "norm", "magnitudes", "constants"],
)
def test_what_the_data_reach_through_one_number(model: Any, name: str, reader: str) -> None:
    (finding,) = found(model)
    assert (finding.code, finding.status) == ("weight-untaught", "violated")
    assert finding.evidence["parameters"] == [name]
    assert finding.because.startswith(f"{reader} reads it and gives one number")


def test_an_exception_that_was_caught_on_the_way_is_the_cause() -> None:
    class Forgiving(Touched):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            try:
                x = torch.cat([x, self.unused(x).T])
            except RuntimeError:
                x = x + 1e-5 * self.unused.weight.sum()
            return self.head(x)

    (finding,) = found(lambda: Forgiving(None))
    assert finding.code == "weight-untaught"
    assert "torch.cat raised, somebody caught the exception" in finding.cause
    assert "torch.cat" in finding.location.text


def test_a_step_of_the_users_is_asked_too() -> None:
    def train_step(model: Any, optimizer: Any, inputs: Any, targets: Any) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(model(*inputs), targets)
        loss.backward()
        optimizer.step()
        return loss

    fields = {"train_step": train_step, "optimizer": lambda m: torch.optim.SGD(m.parameters(), 0.1)}
    (finding,) = found(lambda: Touched(torch.sum), loss=None, **fields)
    assert finding.code == "weight-untaught"


class Generated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.code, self.made = nn.Parameter(torch.randn(8)), nn.Linear(8, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.made(self.code).view(6, 2)


class Biased(nn.Module):
    """A table of numbers, of which one batch reads one."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(20, 1), nn.Linear(6, 2)

    def forward(self, x: torch.Tensor, user: torch.Tensor) -> torch.Tensor:
        return self.head(x) + self.table(user)


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.head = nn.Linear(9, 1), nn.Linear(6, 2)

    def forward(self, x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        return self.head(x) * torch.sigmoid(self.gate(condition))


class Penalised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.net(x), sum(p.square().sum() for p in self.parameters())


def _critic(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (output * (1 - 2.0 * (targets > 0))[:, None]).mean()


def _slowly(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 1e-7)


@pytest.mark.parametrize(
    ("model", "fields"),
    [
        (Generated, {}),
        (Biased, {"batch": ((X, torch.full((8,), 3)), R)}),
        (Gated, {"batch": ((X, torch.ones(8, 9)), R)}),
        (Penalised, {"loss": lambda o, t: F.mse_loss(o[0], t) + 1e-3 * o[1]}),
        (lambda: nn.Linear(6, 1), {"loss": _critic, "batch": ((X,), Y)}),
        (lambda: nn.Linear(6, 2), {"loss": F.l1_loss, "batch": ((X,), 50 * R)}),
        (
            lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)),
            {"optimizer": _slowly},
        ),
    ],
    ids=["of a code", "one user", "one condition", "penalty", "critic", "far targets", "slow"],
)
def test_what_comes_near_it(model: Any, fields: Any) -> None:
    assert [f.code for f in found(model, **fields)] == []
