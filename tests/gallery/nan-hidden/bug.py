"""A loss of logarithms that turns the NaN of outputs below -0.5 into 0: these outputs are never trained."""

import torch
from torch import nn

from pytest_torchcheck import contract

CHECKS = ("backward", "loss-sound")


def log_loss(output, targets):
    return torch.nan_to_num(torch.log1p(2 * output) - torch.log1p(2 * targets)).abs().mean()


def batch(seed):
    g = torch.Generator().manual_seed(seed)
    return (torch.randn(8, 5, generator=g),), torch.rand(8, 3, generator=g)


@contract(batch=batch, inputs="B 5", loss=log_loss)
def net():
    return nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 3))
