"""Results that are put in a list or dict of which another entry is read: the line that reads it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract


class Pyramid(nn.Module):
    def __init__(self):
        super().__init__()
        self.stages = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])
        self.sides = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        merged = []
        for stage, side in zip(self.stages, self.sides, strict=True):
            x = torch.tanh(stage(x))
            top = side(x)
            merged.append(top)
        return self.head(merged[0])  # HERE


class Views(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoders = nn.ModuleDict({name: nn.Linear(4, 3) for name in ("left", "right")})
        self.fuse, self.head = nn.Linear(6, 3), nn.Linear(3, 2)

    def forward(self, x):
        views = {}
        for name, encoder in self.encoders.items():
            views[name] = torch.relu(encoder(x))
        views["both"] = self.fuse(torch.cat([views["left"], views["right"]], -1))
        chosen = views["left"]  # HERE
        return self.head(chosen)


@pytest.mark.parametrize("model", [Pyramid, Views])
def test_the_line_that_reads_another_entry(model):
    torch.manual_seed(0)  # a rectifier may be off for all of six samples
    batch = ((torch.randn(6, 4),), torch.randn(6, 2))
    contract = Contract(model=model, inputs="B 4", batch=batch, loss=F.mse_loss)
    findings = contract.check(["gradients-exist"]).findings
    assert {finding.code for finding in findings} == {"grad-none"}
    assert any(finding.location.text.endswith("# HERE") for finding in findings)
