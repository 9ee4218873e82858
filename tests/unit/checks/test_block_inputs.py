"""A block that activates its own input in place overwrites what its skip connection reads."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, Finding

X, Y = torch.randn(5, 6, generator=torch.Generator().manual_seed(0)), torch.arange(5) % 3


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 12), nn.Linear(12, 8)
        self.act = nn.ReLU(inplace=True)
        self.first = nn.Sequential(nn.LeakyReLU(0.1, inplace=True), nn.Linear(8, 12))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.relu(self.up(F.relu(x)), inplace=True))


class Function(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.relu(x, inplace=True)  # HERE
        return x + self.down(self.up(h))


class Module(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.up(self.act(x))  # HERE
        return self.down(h) + x


class Nested(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.first(x)) + x  # HERE


class Saved(Block):
    """The skip connection has a name of its own, and the activation gives its result the old one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skip = x
        x = F.relu(x, inplace=True)  # HERE
        return skip + self.down(self.up(x))


class Rebound(Block):
    """Everybody is meant to read what the activation gives: the name is bound to it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.act(x)
        return x + self.down(self.up(x))


class Effect(Block):
    """A call for what it writes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        F.relu_(x)
        return x + self.down(self.up(x))


class Plain(Block):
    """No skip connection: nobody else reads the input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.first(x))


def found_in(block: type[Block]) -> list[Finding]:
    def net() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), block(), block(), nn.Linear(8, 3))

    torch.manual_seed(0)
    contract = Contract(model=net, batch=((X,), Y), loss=F.cross_entropy)
    return [f for f in contract.check(["inputs-unchanged"]).findings if f.status != "passed"]


@pytest.mark.parametrize(
    ("block", "held"), [(Function, "x"), (Module, "x"), (Nested, "x"), (Saved, "skip")]
)
def test_a_skip_connection_that_reads_activated_values(block: type[Block], held: str) -> None:
    (finding,) = found_in(block)
    assert (finding.status, finding.code) == ("violated", "block-input-overwritten")
    assert finding.location is not None
    assert finding.location.text.endswith("# HERE")
    assert [c.name for c in finding.culprits if c.kind == "tensor"] == [held]
    assert f"{held} holds them" in finding.because


@pytest.mark.parametrize("block", [Block, Rebound, Effect, Plain])
def test_activations_that_change_nothing_for_others(block: type[Block]) -> None:
    assert found_in(block) == []
