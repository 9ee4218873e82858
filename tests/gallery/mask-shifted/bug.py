"""A forecaster of series of many lengths, whose loss is kept where the input is real, not where the target is."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import contract

CHECKS = ("backward", "excluded-targets")


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.GRU(2, 16, batch_first=True), nn.Linear(16, 2)

    def forward(self, series):
        return self.head(self.cell(series)[0])


def batch(seed):
    g = torch.Generator().manual_seed(seed)
    lengths = torch.tensor([10, 4, 7, 5])
    mask = lengths[:, None] > torch.arange(10)
    series = (1 + torch.rand(4, 10, 2, generator=g)) * mask[..., None]
    return (series,), (series, mask)


def next_value(output, targets):
    series, mask = targets
    error = F.mse_loss(output[:, :-1], series[:, 1:], reduction="none").mean(2)
    keep = mask[:, :-1]
    return (error * keep).sum() / keep.sum()


@contract(batch=batch, loss=next_value)
def forecaster():
    return Forecaster()
