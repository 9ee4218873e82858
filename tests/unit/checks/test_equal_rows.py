"""Rows of a parameter that start equal: those that stay so are told, those that anything parts are not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_torchcheck import Contract, Finding


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    torch.manual_seed(0)


class Slots(nn.Module):
    """Queries that read a sequence; what tells them apart is in ``how``."""

    def __init__(self, how: str, dim: int = 12) -> None:
        super().__init__()
        self.how = how
        self.inp, self.head = nn.Linear(5, dim), nn.Linear(dim, 3)
        self.read = nn.MultiheadAttention(dim, 3, batch_first=True)
        self.mix = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, dim), nn.GELU())
        if how == "drawn":
            self.slots = nn.Parameter(0.02 * torch.randn(1, 4, dim))
        elif how == "copies":
            self.slots = nn.Parameter(torch.randn(1, 1, dim).repeat(1, 4, 1))
        else:
            self.slots = nn.Parameter(torch.full((1, 4, dim), 0.1))
        self.drop = nn.Dropout(0.3 if how == "dropout" else 0.0)
        self.register_buffer("place", torch.randn(1, 4, dim))

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.inp(x)
        q = self.drop(self.slots.expand(len(x), -1, -1))
        if self.how == "position":
            q = q + self.place
        read = q + self.read(q, tokens, tokens, need_weights=False)[0]
        read = read + self.mix(read)
        if self.how == "content":
            read = read * x[:, :4].mean(-1, keepdim=True)
        return self.head(read[:, 0] if self.how == "first" else read.mean(1))


class Positions(nn.Module):
    """A table of positions that starts at zero, as vision transformers have it."""

    def __init__(self) -> None:
        super().__init__()
        self.inp, self.head = nn.Linear(5, 8), nn.Linear(8, 3)
        self.table = nn.Parameter(torch.zeros(1, 6, 8))

    def forward(self, x: Tensor) -> Tensor:
        return self.head((self.inp(x) + self.table).tanh().mean(1))


class Adapter(nn.Module):
    """A low-rank factor that starts at zero, and one whose gradient is zero until that one has moved."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.head = nn.Linear(5, 8), nn.Linear(8, 3)
        self.down, self.up = nn.Parameter(torch.randn(5, 2)), nn.Parameter(torch.zeros(2, 8))

    def forward(self, x: Tensor) -> Tensor:
        return self.head((self.base(x) + x @ self.down @ self.up).tanh().mean(1))


class Prototypes(nn.Module):
    """One prototype for each class, at first all at the origin."""

    def __init__(self) -> None:
        super().__init__()
        self.inp = nn.Linear(5, 8)
        self.prototypes = nn.Embedding(3, 8)
        nn.init.zeros_(self.prototypes.weight)

    def forward(self, x: Tensor) -> Tensor:
        return -torch.cdist(self.inp(x).mean(1), self.prototypes.weight)


def judge(model: nn.Module, **fields: Any) -> list[Finding]:
    batch = ((torch.randn(9, 6, 5),), torch.randint(0, 3, (9,)))
    contract = Contract(model=model, batch=batch, loss=F.cross_entropy, **fields)
    found = contract.check(["initialisation"]).findings
    return [f for f in found if f.status != "passed"]


@pytest.mark.parametrize("how", ["constant", "copies"])
def test_rows_that_nothing_parts_are_told(how: str) -> None:
    (found,) = judge(Slots(how))
    assert (found.status, found.code) == ("violated", "units-equal")
    assert "the 4 rows of slots" in found.summary
    assert found.location is not None
    line = "torch.randn(1, 1, dim).repeat" if how == "copies" else "torch.full((1, 4, dim), 0.1)"
    assert how == "copies" or line in found.location.text


@pytest.mark.parametrize("how", ["drawn", "dropout", "position", "content", "first"])
def test_rows_that_part_are_none(how: str) -> None:
    assert judge(Slots(how)) == []


@pytest.mark.parametrize("model", [Positions, Adapter, Prototypes])
def test_rows_that_start_at_zero_and_part(model: type[nn.Module]) -> None:
    assert judge(model()) == []


def test_a_step_of_ones_own_that_parts_them() -> None:
    def step(model: Any, optimizer: Any, inputs: Any, targets: Tensor) -> Tensor:
        optimizer.zero_grad()
        apart = (model.slots * torch.arange(4.0)[:, None]).sum()
        loss = F.cross_entropy(model(*inputs), targets) + 0.1 * apart
        loss.backward()
        optimizer.step()
        return loss.detach()

    assert (
        judge(
            Slots("constant"),
            train_step=step,
            optimizer=lambda model: torch.optim.Adam(model.parameters(), lr=1e-3),
        )
        == []
    )
