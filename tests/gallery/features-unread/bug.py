"""A gated layer whose gates are never read: the values gate themselves."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ("dead-modules",)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide = nn.Linear(8, 12)
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        values, gates = self.wide(x).chunk(2, dim=-1)
        opened = torch.sigmoid(values)
        return self.head(values * opened)


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=F.cross_entropy)
def net():
    return Net()
