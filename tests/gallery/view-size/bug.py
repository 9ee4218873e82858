"""A view with a number of features that is written in."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('backward',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(2, 4, 3)
        self.head = nn.Linear(24, 3)

    def forward(self, x):
        h = torch.relu(self.conv(x))
        return self.head(h.view(-1, 32)[:, :24])


@contract(inputs="B 2 8", targets=Labels("B", classes=3), loss=F.cross_entropy, sizes={"B": 3})
def net():
    return Net()
