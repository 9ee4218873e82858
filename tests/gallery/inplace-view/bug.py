"""A change of one of several views."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('backward',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 8)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        a, b = self.body(x).chunk(2, dim=1)
        a *= torch.sigmoid(b)
        return self.head(a)


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=F.cross_entropy)
def net():
    return Net()
