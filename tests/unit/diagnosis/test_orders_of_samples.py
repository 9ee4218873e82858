"""Samples that are sorted on the way: what loses some of them is named, not what sorted them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from pytest_torchcheck import Contract

B = 6


class ByRank(nn.Module):
    """Scales each sample in the order of its first feature, and brings them back into their own."""

    def __init__(self, back: str) -> None:
        super().__init__()
        self.into, self.out, self.back = nn.Linear(5, 7), nn.Linear(7, 3), back

    def brought_back(self, rows: Any, order: Any) -> Any:
        if self.back == "in place":
            for place, sample in enumerate(order.tolist()):
                rows[sample] = rows[place]
            return rows
        made = torch.zeros_like(rows)
        if self.back == "scattered":
            return made.index_copy(0, order, rows)
        for place, sample in enumerate(order.tolist()):
            made[sample] = rows[place]
        return made

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        order = x[:, 0].argsort()
        rows = self.into(x[order]).tanh()
        if self.back == "centred":
            centred = rows - rows.mean(0)
            rows = centred
        if self.back == "one of two":
            rows = rows + self.into(x)
        return self.out(self.brought_back(rows, order))


def found(back: str) -> Any:
    torch.manual_seed(0)
    x = torch.randn(B, 5, generator=torch.Generator().manual_seed(4))
    made = Contract(model=lambda: ByRank(back), batch=((x,), None))
    (finding,) = made.check(["batch-independence"]).findings
    return finding


@pytest.mark.parametrize("back", ["row by row", "scattered"])
def test_samples_that_come_back_are_independent(back: str) -> None:
    assert found(back).status == "passed"


@pytest.mark.parametrize(
    ("back", "code", "line"),
    [
        ("in place", "sample-order", "rows[sample] = rows[place]"),
        ("centred", "samples-mixed", "centred = rows - rows.mean(0)"),
    ],
)
def test_what_loses_sorted_samples_is_named(back: str, code: str, line: str) -> None:
    finding = found(back)
    assert (finding.status, finding.code) == ("violated", code)
    assert finding.location.text.startswith(line)
    sorting = [c for c in finding.culprits if c.location and "argsort" in c.location.text]
    assert bool(sorting) == ("new tensor" in finding.fix) == (back == "in place")


def test_two_orders_that_meet_are_told_by_what_made_one_of_them() -> None:
    finding = found("one of two")
    assert finding.code == "samples-mixed"
    assert not finding.location.text.startswith("rows = rows + ")
