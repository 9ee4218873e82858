"""A parameter that only some instances have."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('state-dict-roundtrip',)


BUILT = []


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        BUILT.append(len(BUILT))
        self.body = nn.Linear(8, 16)
        self.head = nn.Linear(16, 3)
        if BUILT:
            self.register_buffer("scale", torch.ones(3))

    def forward(self, x):
        return self.head(torch.relu(self.body(x)))


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=F.cross_entropy)
def net():
    return Net()
