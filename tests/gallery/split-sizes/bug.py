"""Parts that do not add up."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('backward',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 12)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        q, k, v = self.body(x).split([4, 4, 3], dim=1)
        return self.head(torch.sigmoid(q) * torch.tanh(k) + v)


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=F.cross_entropy)
def net():
    return Net()
