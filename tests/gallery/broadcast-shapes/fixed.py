"""Weights per position that lack the last dimension."""

import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('backward',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.score = nn.Linear(8, 1)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        weight = self.score(x).squeeze(2).softmax(1)
        return self.head((x * weight.unsqueeze(2)).sum(1))


@contract(inputs="B 5 8", targets=Labels("B", classes=3), loss=F.cross_entropy)
def net():
    return Net()
