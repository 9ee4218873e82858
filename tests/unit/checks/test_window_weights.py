"""Averages over windows: the divisor must hold the weights of the sum, and need not where these are learnt or no windows."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, Finding

SIZE, STRIDE = 6, 2


class Windows(nn.Module):
    """Averages its predictions over windows in evaluation mode, in one of several ways."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.net = nn.Sequential(nn.Conv2d(3, 8, 1), nn.Tanh(), nn.Conv2d(8, 2, 1))
        bell = torch.exp(-torch.linspace(-1, 3, SIZE).square())
        self.register_buffer("bell", bell[:, None] * bell)
        self.register_buffer("std", torch.tensor([2.0, 5.0])[:, None, None])
        self.register_buffer("hann", torch.hann_window(SIZE)[:, None].expand(SIZE, SIZE))
        self.learnt = nn.Parameter(torch.rand(SIZE, SIZE))

    def weighed(self, values: torch.Tensor) -> torch.Tensor:
        if self.way in ("counts", "clamped", "weights", "squares"):
            return values * self.bell if self.way != "squares" else values * self.bell * self.bell
        if self.way == "learnt":
            return self.learnt * values
        if self.way == "scaled":
            return values * self.std
        return values

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            return self.net(x)
        total = x.new_zeros(len(x), 2, *x.shape[2:])
        seen = torch.zeros(x.shape[2:], dtype=x.dtype)
        for top in range(0, x.shape[2] - SIZE + 1, STRIDE):
            for left in range(0, x.shape[3] - SIZE + 1, STRIDE):
                rows, columns = slice(top, top + SIZE), slice(left, left + SIZE)
                values = self.net(x[:, :, rows, columns])
                total[..., rows, columns] += self.weighed(values)
                if self.way == "weights":
                    seen[rows, columns] += self.bell
                elif self.way == "squares":
                    seen[rows, columns] += self.bell.square()
                else:
                    seen[rows, columns] += 1  # HERE
        if self.way == "clamped":
            return total / seen.clamp(min=1)
        total /= seen
        return total


class Overlapped(Windows):
    """Windows that sum to one number wherever they meet, as those of an inverse Fourier transform do."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            return self.net(x)
        total, seen = x.new_zeros(len(x), 2, *x.shape[2:]), x.new_zeros(x.shape[2:])
        for top in range(0, x.shape[2] - SIZE + 1, SIZE // 2):
            rows = slice(top, top + SIZE)
            values = self.net(x[:, :, rows])
            total[:, :, rows] += self.hann[:, :1] * values
            seen[rows] += 1
        return total / seen


class Routed(Windows):
    """Adds what experts give for the samples that they get, times a gate that reads the sample."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total, seen = x.new_zeros(len(x), 2, *x.shape[2:]), x.new_zeros(len(x), 1, 1, 1)
        for part in (slice(0, 2), slice(1, None)):
            total[part] += x[part].mean((1, 2, 3), keepdim=True) * self.net(x[part])
            seen[part] += 1
        return total / seen


def judged(model: nn.Module) -> Finding:
    contract = Contract(
        model=model, batch=((torch.randn(4, 3, 12, 12),), torch.randn(4, 2, 12, 12)), inputs="B 3 12 12",
        loss=F.mse_loss,
    )  # fmt: skip
    return contract.check(["weighted-means"]).findings[0]


@pytest.mark.parametrize("way", ["counts", "clamped"])
def test_weights_that_the_divisor_does_not_hold(way: str) -> None:
    found = judged(Windows(way))
    assert (found.status, found.code) == ("violated", "weights-uncounted")
    assert found.location.text.endswith("# HERE")
    assert [c.name for c in found.culprits] == ["seen", "total", "div"]
    assert "seen adds 1 at each place of a window" in found.cause


@pytest.mark.parametrize("way", ["weights", "squares", "plain", "learnt", "scaled"])
def test_averages_that_are_right(way: str) -> None:
    """Weights in both, none, learnt ones that need not sum to anything, and a scale of each channel."""
    assert judged(Windows(way)).status == "not-applicable"


def test_gates_that_read_the_sample_need_no_weights() -> None:
    assert judged(Routed("plain")).status == "not-applicable"


def test_weights_that_sum_to_one_number_inside_may_be_meant() -> None:
    """The borders, where fewer windows meet, may be cut off."""
    found = judged(Overlapped("plain"))
    assert (found.status, found.code) == ("suspicious", "weights-uncounted")
    assert "where equally many windows meet" in found.observed
