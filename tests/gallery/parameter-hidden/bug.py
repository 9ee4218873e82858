"""Weights that a cached function makes: the forward reads them, and no optimizer or checkpoint has them."""

import functools

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('backward', 'registration')


@functools.cache
def mixing(width):
    return nn.Parameter(torch.eye(width))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 16)
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        h = torch.relu(self.body(x))
        return self.head(h @ mixing(16))


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=F.cross_entropy)
def net():
    return Net()
