"""A change of an expanded tensor."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('backward',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("start", torch.zeros(1, 8))
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        state = self.start.repeat(x.shape[0], 1)
        state += x
        return self.head(state)


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=F.cross_entropy)
def net():
    return Net()
