"""An optimizer that steps after the first micro-batch, where it was to step after the last."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract, promises

CHECKS = ('accumulation',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))

    def forward(self, x):
        return self.layers(x)


def optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def train_step(model, optimizer, inputs, targets):
    for index, (x, y) in enumerate(zip(inputs[0].chunk(2), targets.chunk(2), strict=True)):
        loss = F.cross_entropy(model(x), y) / 2
        loss.backward()
        last = index % 2 == 0
        if last:
            optimizer.step()
            optimizer.zero_grad()


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=F.cross_entropy, sizes={"B": 8}, optimizer=optimizer, train_step=train_step, promises=(promises.Accumulates(2),))
def net():
    return Net()
