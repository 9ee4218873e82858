"""A size at which the model raises is told with the numbers of the batch that is shown."""

from __future__ import annotations

import torch
from torch import nn

from pytest_torchcheck import Contract, Tokens


class Reader(nn.Module):
    def __init__(self, rows=20):
        super().__init__()
        self.ids, self.places = nn.Embedding(50, 8), nn.Embedding(rows, 8)
        self.head = nn.Linear(8, 4)

    def forward(self, ids):
        place = torch.arange(ids.shape[1])
        return self.head(self.ids(ids) + self.places(place))


class TwoBugs(Reader):
    """Another error for short sequences than for long ones."""

    def forward(self, ids):
        if ids.shape[1] < 10:
            raise ValueError("too short")
        return super().forward(ids)


def crash(model, low=1):
    contract = Contract(
        model=model, inputs=Tokens("B T", vocab=50), sizes={"B": (2, 6), "T": (low, 48)}
    )
    (found,) = contract.check(["batch-sizes"]).causes
    return found


def test_the_numbers_are_those_of_the_smallest_batch():
    found = crash(Reader)
    assert found.code == "position-range"
    assert found.summary.startswith("the model does not run at B=2, T=21: places has 20 positions")
    assert found.evidence["sizes"] == {"B": 2, "T": 21}
    assert "indices int64 [21], 0..20" in found.observed
    assert "up to 20" in found.because
    assert "at least 48" in found.fix or "=48 or more" in found.fix


def test_another_error_of_a_smaller_batch_is_not_taken_for_it():
    found = crash(TwoBugs, low=12)
    assert found.evidence["sizes"]["T"] == 21
    found = crash(TwoBugs)
    assert found.code in ("position-range", "size-crash")
    smallest = {"position-range": 21, "size-crash": 1}
    assert found.evidence["sizes"]["T"] == smallest[found.code]
