"""What begins at zero and is replaced in each turn of a loop was to be added to."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from pytest_torchcheck import Contract


class Steps(nn.Module):
    """Scales its input several times, and returns it with the logarithm of the factor."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))

    def part(self, x: torch.Tensor, layer: nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
        scale = layer(x).sigmoid() + 0.5
        return x * scale, scale.log().sum(1)


class Replacing(Steps):
    def forward(self, x):
        total = x.new_zeros(len(x))
        for layer in self.parts:
            x, part = self.part(x, layer)
            total = part  # BUG
        return x.square().sum(1) - total


class ReplacingANumber(Steps):
    def forward(self, x):
        total = 0.0
        for layer in self.parts:
            scale = layer(x).sigmoid() + 0.5
            x = x * scale
            total = scale.log().sum(1)  # BUG
        return x.square().sum(1) - total


class Adding(Steps):
    def forward(self, x):
        total = x.new_zeros(len(x))
        for layer in self.parts:
            x, part = self.part(x, layer)
            total = total + part
        return x.square().sum(1) - total


class AddingInPlace(Steps):
    def forward(self, x):
        total = 0
        for layer in self.parts:
            x, part = self.part(x, layer)
            total += part
        return x.square().sum(1) - total


class KeepingTheLast(Steps):
    """The last factor alone is meant: nothing was set to zero for a sum."""

    def forward(self, x):
        last = None
        for layer in self.parts:
            x, last = self.part(x, layer)
        return x.square().sum(1) - last


class ByDefault(Steps):
    """Zero stands for no turn at all, and each turn reads what the one before it left."""

    def forward(self, x):
        part = torch.zeros(len(x))
        for layer in self.parts:
            x, new = self.part(x, layer)
            part = torch.maximum(part, new)
        return x.square().sum(1) - part


def check(model: type[nn.Module]) -> Any:
    batch = ((torch.randn(5, 4),), None)
    return Contract(model=model, batch=batch, loss=lambda z, _: z.mean()).check(["dead-modules"])


@pytest.mark.parametrize("model", [Replacing, ReplacingANumber])
def test_a_sum_that_is_replaced_is_told_at_its_line(model: type[nn.Module]) -> None:
    [found] = check(model).findings
    assert (found.status, found.code) == ("violated", "result-unread")
    assert "# BUG" in found.location.text
    assert "of the 4 values that total takes" in found.summary


@pytest.mark.parametrize("model", [Adding, AddingInPlace, KeepingTheLast, ByDefault])
def test_other_loops_are_right(model: type[nn.Module]) -> None:
    assert not [f for f in check(model).findings if f.status == "violated"]
