"""Products of per-sample numbers in which the batch stands along two dimensions."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract


class Flow(nn.Module):
    """Gives a prediction, and the weight of each sample as (B, 1, 1)."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x), torch.exp(-x.mean(1).detach()).view(-1, 1, 1)


def outer(output, target):
    return ((output[0] - target).square().mean(1) * output[1]).mean()


def flat(output, target):
    return ((output[0] - target).square().mean(1) * output[1].flatten()).mean()


def pairs(output, target):
    z = F.normalize(output[0], dim=1)
    return (z[:, None, :] - z[None]).square().mean() + (output[0] - target).square().mean()


def ranked(output, target):
    s, w = output[0].mean(1), output[1].flatten()
    return (torch.sigmoid(s[:, None] - s) * w).mean() + (output[0] - target).square().mean()


@pytest.mark.parametrize("loss", [outer, flat, pairs, ranked])
def test_where_the_batch_stands_twice(loss):
    batch = ((torch.randn(6, 4),), torch.randn(6, 4))
    findings = Contract(model=Flow, inputs="B 4", batch=batch, loss=loss).check(["loss-shapes"])
    (found,) = findings.findings
    assert found.status == ("violated" if loss is outer else "passed")
    assert loss is not outer or found.location.text.endswith("* output[1]).mean()")
