"""A loss that hardly heeds the output: it stays at that of a uniform guess."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('overfit',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.backbone(x))


def loss(output, targets):
    return F.cross_entropy(output / 1e12, targets)


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=loss)
def net():
    return Net()
