"""A table that is moved by hand, not with the model."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('device-portability',)


class Net(nn.Module):
    def __init__(self, device="cpu"):
        super().__init__()
        self.head = nn.Linear(8, 3)
        self.table = torch.linspace(0.5, 1.5, 8).to(device)

    def forward(self, x):
        return self.head(x * self.table)


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=F.cross_entropy)
def net():
    return Net()
