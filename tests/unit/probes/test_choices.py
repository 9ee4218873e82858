"""Experts and branches that the data did not choose are not dead."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract

G = torch.Generator().manual_seed(0)
X, Y = torch.randn(3, 6, generator=G), torch.randint(0, 4, (3,), generator=G)


class Switch(nn.Module):
    """Sixteen experts, three samples."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(6, 16)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4)) for _ in range(16)
        )

    def forward(self, x):
        weight, chosen = self.router(x).softmax(-1).max(-1)
        out = torch.zeros_like(x[:, :4])
        for index in chosen.unique().tolist():
            rows = (chosen == index).nonzero()[:, 0]
            out = out.index_add(0, rows, self.experts[index](x[rows]) * weight[rows, None])
        return out


class Heads(nn.Module):
    """One head for each task, named by an argument."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 6)
        self.heads = nn.ModuleDict({"colour": nn.Linear(6, 4), "shape": nn.Linear(6, 4)})

    def forward(self, x, task):
        return self.heads[task](torch.tanh(self.body(x)))


class Skipped(nn.Module):
    """The last block of a list never runs, whatever the data."""

    def __init__(self):
        super().__init__()
        self.blocks, self.head = nn.ModuleList(nn.Linear(6, 6) for _ in range(3)), nn.Linear(6, 4)

    def forward(self, x):
        for block in self.blocks[:-1]:
            x = torch.tanh(block(x))
        return self.head(x)


@pytest.mark.parametrize(
    ("model", "inputs", "status"),
    [
        (Switch, (X,), "inconclusive"),
        (Heads, (X, "shape"), "inconclusive"),
        (Skipped, (X,), "violated"),
    ],
)
def test_only_what_no_choice_explains_is_dead(model, inputs, status):
    contract = Contract(model=model, batch=(inputs, Y), loss=F.cross_entropy)
    report = contract.check(["gradients-exist", "weights-update"])
    assert report.findings[0].status == status, str(report)
    assert report.ok == (status == "inconclusive"), str(report)
