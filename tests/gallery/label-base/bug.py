"""Labels in which the first class never occurs."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import contract

CHECKS = ('label-range',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        return self.head(x)


def batch(seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(32, 8, generator=generator)
    return x, 1 + torch.arange(32) % 3


@contract(batch=batch, loss=F.cross_entropy)
def net():
    return Net()
