"""Functions that a contract cannot call as it must are refused when they are declared, with the line to write."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_torchcheck import Contract, DeclarationError, Labels
from pytest_torchcheck.declared.callables import takes, takes_output_alone


def make(width: int, depth: int = 1) -> nn.Module:
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(depth)))


class Needy(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()


def step_of_three(model: nn.Module, optimizer: Any, batch: Any) -> None: ...


def loss_of_three(output: Tensor, targets: Tensor, weight: Tensor) -> Tensor:
    return F.cross_entropy(output, targets, weight)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"model": make}, "make(width, depth=1) needs width; write model=lambda: make(width=...)"),
        ({"model": Needy}, "needs width; write model=lambda: Needy(width=...)"),
        ({"model": functools.partial(make, depth=2)}, "needs width"),
        (
            {"optimizer": lambda: None},
            (
                "the lambda() does not take one argument; write optimizer=lambda model: "
                "torch.optim.AdamW(model.parameters())"
            ),
        ),
        (
            {"optimizer": torch.optim.SGD},
            "got the class SGD; write optimizer=lambda model: torch.optim.SGD(model.parameters())",
        ),
        (
            {"train_step": step_of_three},
            (
                "step_of_three(model, optimizer, batch) does not take four arguments; write def "
                "train_step(model, optimizer, inputs, targets)"
            ),
        ),
        (
            {"loss": loss_of_three},
            (
                "loss_of_three(output, targets, weight) does not take two arguments; write "
                "loss=lambda output, targets: loss_of_three(...)"
            ),
        ),
        (
            {"loss": lambda output: output.sum()},
            "takes the output alone; write loss=lambda output, targets: ..., or leave targets= out",
        ),
        ({"loss": F.cross_entropy, "targets": None}, "loss(output, targets) needs targets"),
    ],
)
def test_misuse_is_told_with_the_line_to_write(fields: dict[str, Any], told: str) -> None:
    declared = {
        "model": lambda: make(3), "inputs": "B 3", "targets": Labels("B", classes=3),
        "loss": F.cross_entropy, **fields,
    }  # fmt: skip
    with pytest.raises(DeclarationError) as caught:
        Contract(**declared)
    assert told in str(caught.value)


def test_what_can_be_called_is_taken() -> None:
    def step(model: Any, *rest: Any) -> None: ...

    Contract(
        model=functools.partial(make, 3),
        inputs="B 3",
        targets=Labels("B", classes=3),
        loss=nn.CrossEntropyLoss(),
        optimizer=lambda model, lr=0.1: torch.optim.SGD(model.parameters(), lr),
        train_step=step,
    )
    assert takes(max, 2) in (True, None)
    assert not takes_output_alone(nn.MSELoss())


class Energy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x)))


def test_a_loss_of_the_output_alone_is_trained_by() -> None:
    def spread(output: Tensor) -> Tensor:
        return (output - 1).pow(2).mean()

    report = Contract(model=Energy, inputs="B 3", loss=spread).check()
    assert report.ok, str(report)
    assert {"weights-update", "overfit"} <= {f.check for f in report.with_status("passed")}
    detached = Contract(model=Energy, inputs="B 3", loss=lambda output: output.detach().sum())
    assert not detached.check(["backward"]).ok
