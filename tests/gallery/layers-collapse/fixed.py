"""Two linear layers with nothing between them, in a model with nonlinearities elsewhere."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('nonlinearity',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide = nn.Linear(8, 16)
        self.again = nn.Linear(16, 16)
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        h = self.again(torch.relu(self.wide(x)))
        return self.head(torch.relu(h))


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=F.cross_entropy)
def net():
    return Net()
