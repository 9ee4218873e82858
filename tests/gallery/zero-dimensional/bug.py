"""Losses of the heads are joined as if each were a vector."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import contract

CHECKS = ('backward',)


def loss(outputs, targets):
    return torch.cat([F.mse_loss(output, targets) for output in outputs]).sum()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 1)
        self.second = nn.Linear(8, 1)

    def forward(self, x):
        return torch.relu(self.first(x)), torch.relu(self.second(x))


@contract(inputs="B 8", targets="B 1", loss=loss)
def net():
    return Net()
