"""Statistics that an eval forward takes again: the line that decides it is named with what it reads."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract


class Standardised(nn.Module):
    """Learns the mean of its input as long as ``learns`` says so."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(1, 4))
        self.learns, self.head = True, nn.Linear(4, 2)

    def decides(self):
        return self.learns

    def update(self, x):
        self.mean = x.detach().mean(0, keepdim=True)

    def forward(self, x):
        learn = self.decides()
        if learn:
            self.update(x)
        return self.head(x - self.mean)


class InTraining(Standardised):
    def decides(self):
        return self.learns and self.training


def findings_of(model):
    return Contract(
        model=model,
        batch=((torch.randn(6, 4) + 3,), torch.randint(0, 2, (6,))),
        inputs="B 4",
        sizes={"B": (2, 6)},
        loss=F.cross_entropy,
    ).check("batch-independence")


def test_what_the_deciding_line_reads_is_named():
    (found,) = findings_of(Standardised).findings
    assert found.code == "samples-mixed"
    assert "decides that it does, by self.decides()" in found.cause


def test_statistics_of_training_are_kept_in_evaluation():
    assert findings_of(InTraining).ok
