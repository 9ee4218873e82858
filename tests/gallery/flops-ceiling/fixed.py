"""A step that computes more than the contract allows."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('flops',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        width = 16
        self.body = nn.Linear(8, width)
        self.head = nn.Linear(width, 3)

    def forward(self, x):
        return self.head(torch.relu(self.body(x)))


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=F.cross_entropy, sizes={"B": 4}, flops="50 kFLOP")
def net():
    return Net()
