"""A running mean that is a plain attribute, and in no checkpoint."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('state-dict-roundtrip',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 3)
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x):
        if self.training:
            self.mean.lerp_(x.detach().mean(0), 0.1)
        return self.head(x - self.mean)


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=F.cross_entropy)
def net():
    return Net()
