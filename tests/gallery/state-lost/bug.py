"""A table that is neither parameter nor buffer: a checkpoint does not restore it."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('backward', 'state-dict-roundtrip')


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 3)
        self.register_buffer("mix", torch.randn(8, 8) / 3, persistent=False)

    def forward(self, x):
        return self.head(torch.relu(x @ self.mix))


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=F.cross_entropy)
def net():
    return Net()
