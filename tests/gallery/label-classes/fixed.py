"""A head with fewer classes than the labels have."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('backward', 'label-range')


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        return self.head(x)


def batch(seed):
    g = torch.Generator().manual_seed(seed)
    return (torch.randn(6, 8, generator=g),), torch.tensor([0, 1, 2, 0, 1, 2])


@contract(batch=batch, targets=Labels("B", classes=5), loss=F.cross_entropy)
def net():
    return Net()
