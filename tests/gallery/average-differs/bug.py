"""A moving average whose weights are exchanged."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract, promises

CHECKS = ('moving-average',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.online = nn.Linear(8, 3)
        self.average = copy.deepcopy(self.online).requires_grad_(False)

    def forward(self, x):
        return self.online(x)


def optimizer(model):
    return torch.optim.SGD(model.online.parameters(), lr=0.5)


def train_step(model, optimizer, inputs, targets):
    optimizer.zero_grad()
    F.cross_entropy(model(*inputs), targets).backward()
    optimizer.step()
    with torch.no_grad():
        for kept, new in zip(model.average.parameters(), model.online.parameters(), strict=True):
            kept.lerp_(new, 0.9)


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=F.cross_entropy, optimizer=optimizer, train_step=train_step, promises=(promises.MovingAverage(target="average", source="online", decay=0.9),))
def net():
    return Net()
