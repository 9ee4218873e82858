"""Twelve layers with a plain normal initialisation: each multiplies the differences between samples by four."""

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
            nn.init.normal_(layer.weight, std=1.0)

    def forward(self, x):
        for layer in self.layers:
            x = F.relu(layer(x))
        return self.head(x)


@contract(inputs="B 32", targets=Labels("B", classes=3), loss=F.cross_entropy)
def deep():
    return Deep()
