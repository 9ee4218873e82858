"""Activation checkpointing that draws another dropout mask in the second pass."""

import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from pytest_torchcheck import Labels, contract

CHECKS = ('backward', 'checkpointing')


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.5))
        self.head = nn.Linear(32, 3)

    def forward(self, x):
        h = checkpoint(self.body, x, use_reentrant=False)
        return self.head(h)


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=F.cross_entropy)
def net():
    return Net()
