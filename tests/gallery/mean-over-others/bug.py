"""An error over the observed hours of a series that is divided by the number of the hours that are missing."""

import torch
from torch import nn

from pytest_torchcheck import contract

CHECKS = ("backward", "loss-weights", "target-ownership")


class Forecast(nn.Module):
    def __init__(self):
        super().__init__()
        self.hours = nn.GRU(3, 8, batch_first=True)
        self.value = nn.Linear(8, 1)

    def forward(self, x):
        return self.value(self.hours(x)[0]).squeeze(-1)


def loss(predicted, targets):
    values, missing = targets
    error = (predicted - values).abs() * ~missing
    count = missing.sum().clamp(min=1)
    return error.sum() / count


def batch(seed):
    g = torch.Generator().manual_seed(seed)
    missing = torch.rand(5, 12, generator=g) < 0.4
    return (torch.randn(5, 12, 3, generator=g),), (torch.randn(5, 12, generator=g), missing)


@contract(batch=batch, inputs="B T 3", sizes={"B": (2, 8), "T": (4, 16)}, loss=loss)
def net():
    return Forecast()
