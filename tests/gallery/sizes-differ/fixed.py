"""Distances between points of different dimensions."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('backward',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(8, 6)
        self.centres = nn.Parameter(torch.randn(3, 6))

    def forward(self, x):
        return -torch.cdist(self.embed(x), self.centres)


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=F.cross_entropy)
def net():
    return Net()
