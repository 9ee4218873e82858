"""A running mean whose update has the wrong sign: it moves away from the batch's mean."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ("mode-agreement",)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 16)
        self.head = nn.Linear(16, 3)
        self.register_buffer("centre", torch.zeros(16))

    def forward(self, x):
        h = self.body(x).relu()
        centre = h.detach().mean(0)
        if self.training:
            self.centre.copy_(self.centre - 0.1 * (centre - self.centre))
        else:
            centre = self.centre
        return self.head(h - centre)


@contract(inputs="B 8", targets=Labels("B", classes=3), sizes={"B": 12}, loss=F.cross_entropy)
def net():
    return Net()
