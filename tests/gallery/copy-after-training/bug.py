"""An attention map that is kept for plots, with the graph that computed it."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ("copy-and-pickle",)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.key = nn.Linear(8, 8)
        self.head = nn.Linear(8, 3)
        self.attention = None

    def forward(self, x):
        weights = torch.softmax(self.key(x) @ x.mT, dim=-1)
        self.attention = weights
        return self.head((weights @ x).mean(1))


@contract(inputs="B 5 8", targets=Labels("B", classes=3), loss=F.cross_entropy)
def net():
    return Net()
