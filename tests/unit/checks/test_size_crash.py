"""A size at which the model raises is told with the numbers of the batch that is shown."""

from __future__ import annotations

import math

import pytest
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


class Resampled(nn.Module):
    """Adds a ramp of as many steps as a quotient says, which rounding makes one too many at few lengths."""

    def __init__(self, *, whole: bool) -> None:
        super().__init__()
        self.whole, self.mix = whole, nn.Linear(3, 3)

    def forward(self, x):
        length = x.shape[1]
        steps = length if self.whole else math.ceil(length / 100 * 100)
        return self.mix(x) + torch.linspace(0, 1, steps)[:, None]


@pytest.mark.parametrize("whole", [False, True])
def test_a_size_in_the_middle_of_the_range_is_met(whole):
    report = Contract(
        model=lambda: Resampled(whole=whole), inputs="B T 3", sizes={"B": (2, 4), "T": (10, 30)}
    ).check(["batch-sizes"])
    assert report.ok is whole
    for found in report.failing:
        assert found.evidence["sizes"] == {"B": 2, "T": 14}


class Grid(nn.Module):
    """Adds to each pixel its row and column; the rows repeated as often as there are rows."""

    def __init__(self, *, square: bool) -> None:
        super().__init__()
        self.square, self.mix = square, nn.Conv2d(1, 2, 1)

    def forward(self, x):
        rows, columns = x.shape[-2:]
        down = torch.arange(rows).repeat(rows if self.square else columns, 1).t()
        return (self.mix(x) + down).flatten(2).amax(2)


@pytest.mark.parametrize("square", [False, True])
def test_sizes_change_where_the_shape_of_real_targets_is_not_known(square):
    images, boxes = torch.rand(4, 1, 8, 8), torch.rand(4, 8, 5)
    contract = Contract(
        model=lambda: Grid(square=square), inputs="B 1 H W", batch=(images, boxes),
        sizes={"B": (1, 4), "H": (6, 12), "W": (6, 12)},
    )  # fmt: skip
    assert contract.source.at(H=6) is None
    report = contract.check(["batch-sizes"])
    assert report.ok is not square
    for found in report.failing:
        assert found.evidence["sizes"]["H"] != found.evidence["sizes"]["W"]


def test_a_step_that_fails_on_all_samples_says_nothing_of_fewer():
    def train_step(model, optimizer, inputs, targets):
        raise ValueError("not today")

    made = Contract(
        model=lambda: nn.Linear(4, 2),
        batch=((torch.randn(6, 4),), torch.randn(6, 2)),
        train_step=train_step,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), 0.1),
    )
    red = {f.check: f.summary for f in made.check().findings if f.status == "violated"}
    assert list(red) == ["backward"]
