"""Weights that are all initialised alike: every unit learns the same."""

import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('backward', 'initialisation')


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.head = nn.Linear(16, 3)
        for layer in (self.backbone[0], self.head):
            nn.init.constant_(layer.weight, 0.1)
            nn.init.zeros_(layer.bias)

    def forward(self, x):
        return self.head(self.backbone(x))


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=F.cross_entropy)
def net():
    return Net()
