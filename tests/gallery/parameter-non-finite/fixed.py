"""An initialisation that divides by zero."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 3)
        self.scale = nn.Parameter(1.0 / torch.arange(1.0, 9.0))

    def forward(self, x):
        return self.head(x * self.scale)


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=F.cross_entropy)
def net():
    return Net()
