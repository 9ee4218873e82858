"""Time's growth in a symbol beside that of the work."""

from __future__ import annotations

import time

import pytest
import torch
from torch import nn

from pytest_torchcheck import Contract, measure_growth
from pytest_torchcheck.measure.repeated import upper_power


class Waits(nn.Module):
    """Work in proportion to the length, and time in proportion to its square."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.0004 * x.shape[1] ** 2)
        return self.head(x)


def test_time_grows_by_another_power_than_work() -> None:
    contract = Contract(model=Waits, inputs="B T 3", sizes={"B": 2, "T": (4, 14)})
    found = measure_growth(contract, "T", step="inference", time=True)
    assert found.flops_power == 1
    assert found.time_power == pytest.approx(2.0, abs=0.4)
    assert "where the work grows as T^1" in str(found)
    assert found.to_dict()["seconds"] == list(found.seconds)
    assert not measure_growth(contract, "T", step="inference").seconds


def test_the_power_is_that_of_the_larger_sizes() -> None:
    sizes = (2, 4, 8, 16, 32)
    assert upper_power(sizes, [100 + size**2 for size in sizes]) == pytest.approx(1.4)
    assert upper_power(sizes, [size**1.5 for size in sizes]) == pytest.approx(1.5)
    assert upper_power(sizes, [0.0] * 5) == 0.0
