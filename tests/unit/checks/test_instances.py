"""Two instances of one factory are apart: no memory in common that training writes to, no global that the last one fills."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from pytest_torchcheck import Contract

if TYPE_CHECKING:
    from collections.abc import Callable

_TABLE = torch.randn(7, 4)
_RAMP = torch.linspace(-1, 1, 4)
_STATISTICS = torch.zeros(4)
_BACKBONE = nn.Linear(4, 4)
_CURRENT: dict[str, nn.Module] = {}
_ALL: list[nn.Module] = []


class _Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))

    def body(self, x: torch.Tensor) -> torch.Tensor:
        return x


class _FromTable(_Base):
    """The embedding trains the table itself, which all instances get."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding.from_pretrained(_TABLE, freeze=False)

    def body(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.table.weight[:4]


class _FromCopy(_FromTable):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding.from_pretrained(_TABLE.clone(), freeze=False)


class _Constants(_Base):
    """A table of constants is one for all."""

    ramp: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("ramp", _RAMP)

    def body(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.ramp


class _Statistics(_Base):
    mean: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", _STATISTICS)

    def body(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.mean.lerp_(x.detach().mean(0), 0.1)
        return x - self.mean


class _Pretrained(_Base):
    """A module that is loaded once and put into each model."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = _BACKBONE

    def body(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.backbone(x))


class _Current(_Base):
    """The scale is looked up under a name that the next instance takes."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Linear(4, 4)
        _CURRENT["scale"] = self.scale

    def body(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(_CURRENT["scale"](x))


class _Listed(_Base):
    """All instances are listed, and each reads its own."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Linear(4, 4)
        _ALL.append(self.scale)

    def body(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.scale(x))


def _found(model: Callable[[], nn.Module]) -> list[str]:
    g = torch.Generator().manual_seed(3)
    report = Contract(
        model=model, batch=((torch.randn(6, 4, generator=g),), torch.tensor([0, 1, 0, 1, 1, 0])),
        loss=nn.functional.cross_entropy,
    ).check(["state-dict-roundtrip", "initialisation"])  # fmt: skip
    return [f.code for f in report.findings if f.status == "violated"]


@pytest.mark.parametrize("model", [_FromTable, _Statistics, _Current])
def test_what_ties_two_instances_is_told(model: Callable[[], nn.Module]) -> None:
    assert "factory-repeats" in _found(model)


@pytest.mark.parametrize("model", [_FromCopy, _Constants, _Pretrained, _Listed])
def test_what_leaves_them_apart_is_not(model: Callable[[], nn.Module]) -> None:
    assert _found(model) == []
