"""What an optimizer keeps in plain attributes and does not save: the line that writes it in a step is named."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, Finding


class Averaging(torch.optim.SGD):
    """Weighs its steps by a sum of weights that it keeps in one of several ways."""

    def __init__(self, parameters: Any, way: str) -> None:
        super().__init__(parameters, lr=0.2)
        self.way = way
        self.entries = [0.0]
        if way != "late":
            self.total: Any = torch.zeros(()) if way == "tensor" else 0.0
        self.param_groups[0]["total"] = 0.0

    def grown(self) -> Any:
        if self.way == "group":
            self.param_groups[0]["total"] += 1.0
            return self.param_groups[0]["total"]
        if self.way == "tensor":
            self.total.add_(1.0)  # WRITES
            return self.total
        if not hasattr(self, "total"):
            self.total = 0.0
        self.total = self.total + 1.0  # WRITES
        return self.total

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        weight = 1.0 / self.grown()
        for p in self.param_groups[0]["params"]:
            if p.grad is not None:
                p.sub_(p.grad * weight * self.param_groups[0]["lr"])


def resumed(make: Any, model: Any) -> Finding:
    contract = Contract(
        model=model, batch=((torch.randn(8, 6),), torch.arange(8) % 3), loss=F.cross_entropy, optimizer=make,
    )  # fmt: skip
    (found,) = contract.check(["resume"]).findings
    return found


@pytest.mark.parametrize("way", ["number", "tensor", "late"])
def test_the_line_that_writes_it_is_named(way: str) -> None:
    found = resumed(lambda model: Averaging(model.parameters(), way), lambda: nn.Linear(6, 3))
    assert (found.status, found.code) == ("violated", "resume-differs")
    assert found.location.text.endswith("# WRITES")
    assert found.culprits[0].name == "optimizer.total"
    assert f"optimizer.total is written on line {found.location.line}" in found.because
    others = [c.location.text for c in found.culprits if c.detail == "not in the checkpoint"]
    assert any("self.total" in text and "WRITES" not in text for text in others)


def test_what_is_saved_in_a_group_is_resumed() -> None:
    found = resumed(lambda model: Averaging(model.parameters(), "group"), lambda: nn.Linear(6, 3))
    assert found.status == "passed", found


class Counting(nn.Module):
    """Counts its training forwards in a plain attribute, which scales its outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 3)
        self.calls = 0  # DECLARED

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += int(self.training)
        return self.head(x) * (1 + self.calls)


def test_what_a_module_is_to_register_is_named_where_it_is_declared() -> None:
    """Its fix is a buffer, which the constructor makes."""
    found = resumed(lambda model: torch.optim.SGD(model.parameters(), lr=0.1), Counting)
    assert (found.status, found.code) == ("violated", "resume-differs")
    assert found.location.text.endswith("# DECLARED")


class Listing(torch.optim.SGD):
    """Keeps its count as an entry of a list."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.2)
        self.sums = {"mean": [torch.ones(())]}  # DECLARED

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        self.sums["mean"][0].add_(1.0)
        for p in self.param_groups[0]["params"]:
            p.sub_(p.grad / self.sums["mean"][0])


def test_an_entry_of_a_container_is_named_where_that_is_made() -> None:
    found = resumed(lambda model: Listing(model.parameters()), lambda: nn.Linear(6, 3))
    assert (found.status, found.code) == ("violated", "resume-differs")
    assert found.location.text.endswith("# DECLARED")
