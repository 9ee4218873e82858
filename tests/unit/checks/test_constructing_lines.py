"""A module that a function makes is told by the line of that function which constructs it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pytest_torchcheck import Contract, promises


def shifted(ahead):
    if ahead:
        return nn.ZeroPad2d((0, 0, -1, 1))  # AHEAD
    return nn.ZeroPad2d((0, 0, 1, -1))


class Mixer(nn.Module):
    def __init__(self, ahead):
        super().__init__()
        self.shift = shifted(ahead)
        self.mix = nn.Linear(6, 6)

    def forward(self, x):
        return self.mix(x) + self.shift(x)


@pytest.mark.parametrize("ahead", [True, False])
def test_of_two_lines_that_construct_the_one_whose_arguments_the_module_holds(ahead):
    torch.manual_seed(0)
    report = Contract(
        model=Mixer(ahead),
        batch=(torch.randn(4, 7, 6),),
        promises=(promises.Causal(dim=1, output_dim=1),),
    ).check(["causality"])
    if not ahead:
        assert not report.causes
        return
    (found,) = report.causes
    lines = [c.location.text for c in found.culprits if c.location is not None]
    assert any("# AHEAD" in line for line in lines)
