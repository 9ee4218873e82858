"""A training loop as a method named train, which eval() calls."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('mode-flags',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(x)

    def train(self, batches, epochs=10):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        for _ in range(epochs):
            for x, y in batches:
                optimizer.zero_grad()
                F.cross_entropy(self(x), y).backward()
                optimizer.step()


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=F.cross_entropy)
def net():
    return Net()
