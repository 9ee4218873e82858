"""A LayerNorm over the wrong dimension."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('backward',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        h = self.norm(x.transpose(1, 2))
        return self.head(torch.relu(x + h.view_as(x)).mean(1))


@contract(inputs="B 5 8", targets=Labels("B", classes=3), loss=F.cross_entropy)
def net():
    return Net()
