"""Attention pooling that weighs the features, and detaches them first."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('backward', 'gradients-exist', 'descent')


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 16)
        self.score = nn.Linear(16, 1)
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        h = torch.tanh(self.body(x))
        weight = self.score(h).softmax(1)
        return self.head((weight * h.detach()).sum(1))


@contract(inputs="B T 6", targets=Labels("B", classes=3), loss=F.cross_entropy, sizes={"B": 6, "T": 5})
def net():
    return Net()
