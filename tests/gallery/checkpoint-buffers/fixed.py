"""Batch normalisation inside a checkpointed region."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from pytest_torchcheck import Labels, contract

CHECKS = ('backward', 'checkpointing')


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 16)
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 3)

    def block(self, x):
        return torch.relu(self.norm(self.body(x)))

    def forward(self, x):
        return self.head(checkpoint(self.block, x, use_reentrant=False))


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=F.cross_entropy)
def net():
    return Net()
