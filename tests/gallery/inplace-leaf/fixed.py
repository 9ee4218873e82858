"""A parameter that is changed in forward."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('backward',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        scale = self.scale.clamp(0.5, 2.0)
        return self.head(x * scale)


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=F.cross_entropy)
def net():
    return Net()
