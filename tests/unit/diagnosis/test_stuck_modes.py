"""The line of an overridden ``train()`` that reaches some of the modules it should reach."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pytest_torchcheck import Contract


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.towers = nn.ModuleDict(
            {name: nn.Sequential(nn.Linear(4, 2), nn.Dropout(0.5)) for name in ("left", "right")}
        )

    def train(self, mode=True):
        self.training = mode
        self.towers["right"].train(mode)  # HERE
        return self

    def forward(self, x):
        return sum(tower(x) for tower in self.towers.values())


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(
            [nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)) for _ in range(4)]
        )

    def train(self, mode=True):
        self.training = mode
        for block in self.blocks[1:]:  # HERE
            block.train(mode)
        return self

    def forward(self, x):
        return nn.Sequential(*self.blocks)(x)


@pytest.mark.parametrize("model", [Towers, Stack])
def test_the_line_that_reaches_a_sibling(model):
    contract = Contract(model=model, inputs="B 4", batch=((torch.randn(6, 4),), None))
    (finding,) = contract.check(["mode-flags"]).findings
    assert finding.code == "mode-stuck"
    assert finding.location.text.endswith("# HERE")
