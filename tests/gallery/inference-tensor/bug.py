"""A constant made under inference_mode."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('backward',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        with torch.inference_mode():
            table = torch.linspace(0.5, 1.5, 8)
        self.register_buffer("table", table)
        self.head = nn.Linear(8, 3)
        self.gate = nn.Parameter(torch.ones(8))

    def forward(self, x):
        return self.head(x + self.table * self.gate)


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=F.cross_entropy)
def net():
    return Net()
