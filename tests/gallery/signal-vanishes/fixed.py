"""Twelve layers that each shrink the differences between samples, until the last one sees no difference at all."""

import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('signal-propagation',)


class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(32, 32) for _ in range(12)])
        self.head = nn.Linear(32, 3)
        for layer in self.layers:
            nn.init.kaiming_normal_(layer.weight)

    def forward(self, x):
        for layer in self.layers:
            x = F.relu(layer(x))
        return self.head(x)


@contract(inputs="B 32", targets=Labels("B", classes=3), loss=F.cross_entropy)
def deep():
    return Deep()
