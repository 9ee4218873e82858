"""Batch statistics over a single value."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('backward',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 16)
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(torch.relu(self.norm(self.body(x))))


@contract(inputs="B 8", sizes={"B": 1}, targets=Labels("B", classes=3), loss=F.cross_entropy)
def net():
    return Net()
