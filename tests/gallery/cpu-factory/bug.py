"""A tensor made in forward without the device of the data."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        ramp = torch.linspace(0.5, 1.5, 8)
        return self.head(x * ramp)


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=F.cross_entropy)
def net():
    return Net()
