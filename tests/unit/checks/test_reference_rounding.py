"""Two versions of a model of which one casts to float32 in between: they agree up to that, and no further."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, promises


class Scores(nn.Module):
    """A softmax over scores; ``kind`` says how it is computed."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.lin = kind, nn.Linear(6, 6)

    def forward(self, x):
        h = self.lin(x)
        if self.kind == "narrow":
            return F.softmax(h, dim=-1, dtype=torch.float32).to(h.dtype)
        if self.kind == "shifted":
            h = h + 1e-4 * torch.arange(6).to(h.dtype)
        return F.softmax(h, dim=-1)


def _finding(one: str, other: str):
    torch.manual_seed(0)
    contract = Contract(
        model=Scores(one),
        batch=((torch.randn(5, 6),), torch.rand(5, 6)),
        loss=F.mse_loss,
        promises=[promises.Matches(lambda: Scores(other))],
    )
    return contract.check(["reference-match"]).findings[0]


@pytest.mark.parametrize(("one", "other"), [("narrow", "wide"), ("wide", "narrow")])
def test_rounding_of_a_cast_is_no_difference(one, other):
    assert _finding(one, other).status == "passed"


def test_a_small_difference_counts_where_nothing_is_cast():
    assert _finding("wide", "shifted").status == "violated"


@pytest.mark.parametrize("kind", ["wide", "narrow"])
def test_equal_versions_match(kind):
    assert _finding(kind, kind).status == "passed"
