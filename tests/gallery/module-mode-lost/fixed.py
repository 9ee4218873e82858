"""Dropout in a plain list, which eval() does not reach."""

import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('registration',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.noise = nn.ModuleList([nn.Dropout(0.5)])
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.noise[0](x))


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=F.cross_entropy)
def net():
    return Net()
