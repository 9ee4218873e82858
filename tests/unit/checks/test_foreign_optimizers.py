"""Objects with the step of an optimizer that are none of torch's classes, in the plain step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, Labels


class Handle:
    """Hands everything to the optimizer within it, as frameworks do."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def step(self, closure: Any = None) -> Any:
        return self.inner.step(closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.inner.zero_grad(set_to_none)


class Signs:
    """Moves each weight by the sign of its gradient."""

    def __init__(self, parameters: Any, rate: float = 1e-3) -> None:
        self.parameters, self.rate = list(parameters), rate

    def zero_grad(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        for parameter in self.parameters:
            if parameter.grad is not None:
                parameter -= self.rate * parameter.grad.sign()


class Idle(Signs):
    """Forgets to write what it computes."""

    @torch.no_grad()
    def step(self) -> None:
        for parameter in self.parameters:
            _ = parameter - self.rate * parameter.grad.sign()


def contract(optimizer: Any) -> Contract:
    return Contract(
        model=lambda: nn.Sequential(nn.Linear(5, 9), nn.Tanh(), nn.Linear(9, 3)),
        inputs="B 5", targets=Labels("B", classes=3), loss=F.cross_entropy, optimizer=optimizer,
    )  # fmt: skip


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda model: Handle(torch.optim.AdamW(model.parameters(), 1e-2)),
        lambda model: Signs(model.parameters()),
        lambda model: {"body": Signs(model[0].parameters()), "head": Signs(model[2].parameters())},
    ],
    ids=["handle", "signs", "two"],
)
def test_a_plain_step_uses_what_has_the_methods_of_an_optimizer(optimizer: Any) -> None:
    report = contract(optimizer).check()
    assert report.ok, str(report)


def test_one_that_updates_nothing_is_told() -> None:
    report = contract(lambda model: Idle(model.parameters())).check(["weights-update"])
    (found,) = report.findings
    assert found.code == "weight-static"
    assert "does not update it" in found.cause
