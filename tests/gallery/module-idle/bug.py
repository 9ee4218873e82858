"""An activation that is built and never applied."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('dead-modules',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 16)
        self.act = nn.ReLU()
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.body(x)))


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=F.cross_entropy)
def net():
    return Net()
