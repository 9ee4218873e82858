"""Positions added along the batch dimension."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("positions", torch.randn(32, 8, generator=torch.Generator().manual_seed(1)))
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        x = x + self.positions[: x.shape[1]]
        return self.head(x.mean(1))


@contract(inputs="B T 8", targets=Labels("B", classes=3), loss=F.cross_entropy, sizes={"B": (2, 6), "T": (3, 9)})
def net():
    return Net()
