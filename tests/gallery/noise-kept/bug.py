"""A dropout with one mask for all time steps, which is drawn in the first forward only."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import contract

CHECKS = ("backward", "dropped-values")


class LockedDropout(nn.Module):
    """Drops the same features at all time steps."""

    def __init__(self, p):
        super().__init__()
        self.p, self.mask = p, None

    def forward(self, x):
        if not self.training:
            return x
        if self.mask is None:
            self.mask = F.dropout(x.new_ones(len(x), 1, x.shape[2]), self.p)
        return x * self.mask


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.drop, self.leave = nn.Linear(6, 16), LockedDropout(0.3), nn.Linear(16, 3)

    def forward(self, x):
        return self.leave(torch.relu(self.drop(self.enter(x))))


def batch(seed):
    g = torch.Generator().manual_seed(seed)
    return (torch.randn(8, 5, 6, generator=g),), torch.randn(8, 5, 3, generator=g)


@contract(batch=batch, loss=F.mse_loss)
def net():
    return Net()
