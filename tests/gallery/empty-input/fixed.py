"""Layers that are skipped leave nothing to join."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('backward',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.head = nn.Linear(24, 3)

    def forward(self, x):
        outputs = []
        for depth, layer in enumerate(self.layers):
            if depth < 3:
                outputs.append(layer(x))
        return self.head(torch.cat(outputs, dim=1))


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=F.cross_entropy)
def net():
    return Net()
