"""Parameters that the forward or the loss reads, and that neither the model nor an optimizer has."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_torchcheck import Contract, Labels

FIELDS: dict[str, Any] = {"inputs": "B 5", "targets": Labels("B", classes=3)}


def told(model: Any, check: str, **fields: Any) -> list[tuple[str, str]]:
    contract = Contract(model=model, **{"loss": F.cross_entropy, **FIELDS, **fields})
    return [
        (f.status, f.code)
        for f in contract.check([check]).findings
        if f.status not in ("passed", "inconclusive")
    ]


class Shared(nn.Linear):
    """Adds an offset that a cached function keeps."""

    def __init__(self) -> None:
        super().__init__(5, 3)

    @staticmethod
    @functools.cache
    def offset() -> nn.Parameter:
        return nn.Parameter(torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.offset()  # read


class Kept(nn.Linear):
    """Adds an offset of its own."""

    def __init__(self) -> None:
        super().__init__(5, 3)
        self.offset = nn.Parameter(torch.zeros(3))

    def forward(self, x: Tensor, scale: Tensor = torch.ones(3)) -> Tensor:  # noqa: B008
        return super().forward(x) * scale + self.offset


def test_a_parameter_of_a_cached_function_is_found() -> None:
    assert told(Shared, "registration") == [("suspicious", "parameter-hidden")]
    found = (
        Contract(model=Shared, loss=F.cross_entropy, **FIELDS).check(["registration"]).findings[0]
    )
    assert found.location is not None
    assert found.location.text.endswith("# read")


@pytest.mark.parametrize("model", [Kept, lambda: nn.Linear(5, 3)])
def test_own_parameters_and_plain_defaults_are_sound(model: Any) -> None:
    assert told(model, "registration") == []


class Scaled(nn.Module):
    """A loss that learns the temperature of its softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.heat = nn.Parameter(torch.ones(()))

    def forward(self, o: Tensor, t: Tensor) -> Tensor:
        return F.cross_entropy(o * self.heat, t)


def fit(*others: nn.Module) -> Any:
    def optimizer(model: nn.Module) -> torch.optim.Optimizer:
        every = [p for module in (model, *others) for p in module.parameters()]
        return torch.optim.SGD(every, lr=0.1)

    return optimizer


def test_parameters_of_a_loss_must_be_in_an_optimizer() -> None:
    def net() -> nn.Module:
        return nn.Linear(5, 3)

    loss = Scaled()
    coverage = "optimizer-coverage"
    assert told(net, coverage, loss=loss, optimizer=fit()) == [("suspicious", "optimizer-missing")]
    assert told(net, coverage, loss=loss, optimizer=fit(loss)) == []
    assert told(net, coverage, loss=Scaled().requires_grad_(False), optimizer=fit()) == []
    assert told(net, coverage, loss=nn.CrossEntropyLoss(), optimizer=fit()) == []
