"""A dropout of whole samples that scales what it keeps by the share that it keeps, not by its inverse."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import contract

CHECKS = ("backward", "dropped-values")


class DropPath(nn.Module):
    """Drops the branch of a random part of the samples."""

    def __init__(self, p):
        super().__init__()
        self.p = p

    def forward(self, x):
        if not self.training:
            return x
        keep = 1 - self.p
        mask = torch.bernoulli(x.new_full((len(x), 1, 1), keep))
        return x * mask / keep


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.drop, self.leave = nn.Linear(6, 16), DropPath(0.3), nn.Linear(16, 3)

    def forward(self, x):
        return self.leave(torch.relu(self.drop(self.enter(x))))


def batch(seed):
    g = torch.Generator().manual_seed(seed)
    return (torch.randn(8, 5, 6, generator=g),), torch.randn(8, 5, 3, generator=g)


@contract(batch=batch, loss=F.mse_loss)
def net():
    return Net()
