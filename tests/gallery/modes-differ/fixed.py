"""A layer that is skipped together with the dropout."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ("mode-agreement",)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 16)
        self.norm = nn.LayerNorm(16)
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        h = torch.relu(self.body(x))
        h = self.norm(h)
        if self.training:
            h = self.drop(h)
        return self.head(h)


@contract(inputs="B 8", targets=Labels("B", classes=3), sizes={"B": 12}, loss=F.cross_entropy)
def net():
    return Net()
