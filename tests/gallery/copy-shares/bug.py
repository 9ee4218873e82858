"""A noise scale whose deep copy is the very same tensor."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('copy-and-pickle',)


class Scale(nn.Parameter):
    """Every copy of the model uses one scale."""

    def __deepcopy__(self, memo):
        return self


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.noise = Scale(torch.full((8,), 0.1))
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        if self.training:
            x = x + self.noise * torch.randn_like(x)
        return self.head(x)


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=F.cross_entropy)
def net():
    return Net()
