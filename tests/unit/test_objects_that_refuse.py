"""Objects beside a model whose own special methods raise: whatever the checks ask of them, none fails for it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

from pytest_torchcheck import Contract, Labels


class Shut(dict):
    """May only be asked by key."""

    def items(self):
        raise PermissionError("ask by key")

    keys = values = __iter__ = items


class Handle(torch.Tensor):
    """Names a tensor of another process; no operation of torch takes it."""

    @classmethod
    def __torch_function__(cls, function, kinds, args=(), kwargs=None):
        raise PermissionError("not in this process")


class Unequal(type):
    """Classes that may not be compared, all of one hash."""

    def __eq__(cls, other):
        raise PermissionError("compare their names")

    def __hash__(cls):
        return 3


class Holder(nn.Linear):
    def __init__(self, held: Any) -> None:
        super().__init__(5, 3)
        self.held = held


class Compared(nn.Linear, metaclass=Unequal):
    pass


class Table:
    """Reads its attributes from a table, and says so where one is missing."""

    def __init__(self) -> None:
        self.__dict__["rows"] = {"scale": 2.0}

    def __getattr__(self, name: str) -> Any:
        return self.rows[name]


class Scaled(Table):
    def __call__(self, output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return self.scale * F.cross_entropy(output, label)


class Rows(Table, Dataset):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if not 0 <= index < 12:
            raise IndexError(index)
        return torch.full((5,), self.scale * index), index % 3


MODELS = {
    "dict": lambda: Holder(Shut(a=1)),
    "tensor": lambda: Holder(torch.zeros(3).as_subclass(Handle)),
    "class": lambda: nn.Sequential(Compared(5, 8), nn.GELU(), nn.Linear(8, 3)),
    "loss": lambda: nn.Linear(5, 3),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_and_losses_with_objects_that_refuse(name: str) -> None:
    loss = Scaled() if name == "loss" else F.cross_entropy
    contract = Contract(model=MODELS[name], inputs="B 5", targets=Labels("B", classes=3), loss=loss)
    report = contract.check()
    assert report.ok, str(report)


def test_a_dataset_that_refuses_what_only_the_checks_ask() -> None:
    report = Contract(dataset=Rows()).check()
    assert report.ok, str(report)


class Sealed(Exception):
    """Answers nothing."""

    def __getattribute__(self, name: str) -> Any:
        raise PermissionError(name)


class Raises(nn.Linear):
    def __init__(self, where: str) -> None:
        super().__init__(5, 3)
        self.where = where

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.where == "forward":
            raise Sealed("no input")
        return super().forward(x)


@pytest.mark.parametrize("where", ["forward", "loss", "step"])
def test_an_exception_that_refuses_is_told_as_any_other(where: str) -> None:
    def loss(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        if where == "loss":
            raise Sealed("no input")
        return F.cross_entropy(output, label)

    def step(model: Any, optimizer: Any, inputs: Any, targets: Any) -> None:
        raise Sealed("no input")

    how = {"train_step": step} if where == "step" else {"loss": loss}
    contract = Contract(
        model=lambda: Raises(where), inputs="B 5", targets=Labels("B", classes=3), **how
    )
    report = contract.check()
    assert not [f for f in report.findings if f.status == "error"]
    (found,) = [f for f in report.findings if f.code == "crash" and f.status == "violated"]
    assert "Sealed" in found.summary
    assert "no input" in found.summary
    assert found.location is not None
    assert found.location.text == 'raise Sealed("no input")' or where == "forward"
