"""A rate given to a loss that expects the logarithm of one."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import contract


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.head = nn.Linear(16, 2)

    def forward(self, x):
        return F.softplus(self.head(self.body(x)))


def batch(seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(12, 8, generator=g)
    return (x,), torch.poisson(x[:, :2].exp(), generator=g)


@contract(batch=batch, loss=nn.PoissonNLLLoss())
def net():
    return Counter()
