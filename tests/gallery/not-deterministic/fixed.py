"""A count of calls that changes the output."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract, promises

CHECKS = ('deterministic-algorithms',)


CALLS = []


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.backbone(x)) * (1 + 0.01 * (len(CALLS) % 7))


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=F.cross_entropy, sizes={"B": 6}, promises=promises.Deterministic())
def net():
    return Net()
