"""Positions that half precision cannot tell apart are found, at the drawn size or at the largest that is declared."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, Finding, Labels


class Clock(nn.Module):
    """Adds a phase of each position to a signal."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.head = nn.Linear(3, 8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.up(x)
        phase = self.positions(h)[:, None] * torch.linspace(0.1, 1, 8)
        return self.head(h + phase.sin().to(h.dtype)).mean(1)

    def positions(self, h: torch.Tensor) -> torch.Tensor:
        return torch.arange(h.shape[1]).to(torch.bfloat16)


class Direct(Clock):
    def positions(self, h: torch.Tensor) -> torch.Tensor:
        return torch.arange(h.shape[1], dtype=torch.bfloat16)


class Autocast(Clock):
    """A product under autocast rounds its operands by itself."""

    def positions(self, h: torch.Tensor) -> torch.Tensor:
        places = torch.arange(h.shape[1]).float()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return (places[:, None] @ torch.ones(1, 1))[:, 0]


class Wide(Clock):
    def positions(self, h: torch.Tensor) -> torch.Tensor:
        return torch.arange(h.shape[1]).float()


class Fractions(Clock):
    """Steps of a fraction, and a grid that wants a gradient: no positions, and no error of the check."""

    def positions(self, h: torch.Tensor) -> torch.Tensor:
        grid = torch.arange(0, 1, 0.25, dtype=torch.bfloat16, requires_grad=True)
        ends = torch.arange(start=0, end=300, step=2, dtype=torch.bfloat16)
        return torch.arange(h.shape[1]).float() + grid.sum() + 0 * ends.sum()


class Few(Clock):
    """What counts in steps of a sixteenth, and levels that are whole numbers below 256."""

    def positions(self, h: torch.Tensor) -> torch.Tensor:
        levels = torch.arange(200).to(torch.bfloat16)
        return (torch.arange(h.shape[1]) / h.shape[1]).to(torch.bfloat16) + levels[:1]


def found_in(model: type[nn.Module], size: int, most: int) -> list[Finding]:
    torch.manual_seed(0)
    contract = Contract(
        model=model,
        inputs="B T 3",
        targets=Labels("B", classes=2),
        sizes={"B": 4, "T": (2, most)} if size == 0 else {"B": 4, "T": size},
        loss=F.cross_entropy,
    )
    return [f for f in contract.check(["gradients-finite"]).findings if f.status != "passed"]


@pytest.mark.parametrize("model", [Clock, Direct, Autocast])
@pytest.mark.parametrize(("size", "most"), [(300, 300), (258, 258), (0, 258), (0, 600)])
def test_positions_beyond_what_a_dtype_tells_apart(
    model: type[nn.Module], size: int, most: int
) -> None:
    (finding,) = found_in(model, size, most)
    assert (finding.status, finding.code) == ("violated", "positions-merge")
    assert finding.location is not None
    assert (
        "torch.arange(h.shape[1]" in finding.location.text
        or "places[:, None]" in finding.location.text
    )


@pytest.mark.parametrize(
    ("model", "size", "most"),
    [(Clock, 200, 200), (Clock, 0, 257), (Wide, 300, 300), (Fractions, 300, 300), (Few, 300, 300)],
)
def test_positions_that_stay_apart(model: type[nn.Module], size: int, most: int) -> None:
    assert found_in(model, size, most) == []
