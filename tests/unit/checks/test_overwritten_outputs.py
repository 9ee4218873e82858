"""An output that the caller holds keeps its values when the model is called again."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pytest_torchcheck import Contract, promises

ROOM = torch.empty(64, 3)


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)
        self.rooms: list[torch.Tensor] = []
        self.register_buffer("last", torch.zeros(64, 3), persistent=False)
        self.register_buffer("table", torch.arange(12.0).view(4, 3))
        self.seen: dict[bytes, torch.Tensor] = {}


class IntoAGlobal(Base):
    def forward(self, x):
        made = self.layer(x)
        return made if self.training else ROOM[: len(made)].copy_(made.detach())


class IntoAList(Base):
    def forward(self, x):
        made = self.layer(x)
        if self.training:
            return {"made": made}
        if not self.rooms:
            self.rooms.append(torch.zeros(64, 3))
        self.rooms[0][: len(made)] = made
        return {"made": self.rooms[0][: len(made)].T}


class IntoABuffer(Base):
    def forward(self, x):
        made = self.layer(x)
        if not self.training:
            self.last[: len(made)] = made.detach()
        return made if self.training else self.last[: len(made)]


class ByContents(Base):
    def forward(self, x):
        key = bytes(x.detach().numpy().tobytes()) if not self.training else b""
        if self.training:
            return self.layer(x)
        if key not in self.seen:
            self.seen[key] = self.layer(x)
        return self.seen[key]


class WithItsTable(Base):
    def forward(self, x):
        return self.layer(x), self.table, x


class Copied(IntoAList):
    def forward(self, x):
        return {"made": super().forward(x)["made"].clone()}


def found(model, **declared):
    report = Contract(model=model, inputs="B 5", **declared).check(["eval-purity"])
    return [(f.status, f.code) for f in report.findings]


@pytest.mark.parametrize("model", [IntoAGlobal, IntoAList, IntoABuffer])
def test_an_output_that_the_next_call_writes_to_is_found(model):
    assert found(model) == [("violated", "output-overwritten")]


@pytest.mark.parametrize("model", [ByContents, WithItsTable, Copied])
def test_an_output_that_is_held_and_not_written_passes(model):
    assert found(model) == [("passed", "held")]


def test_a_buffer_that_may_change_may_be_returned():
    allowed = promises.MayChange("last", reason="a stream's scratch memory, documented as such")
    assert found(IntoABuffer, promises=(allowed,)) == [("passed", "held")]
