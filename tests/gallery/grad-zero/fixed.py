"""A softmax over a dimension of one: its output is constant, so that its layer never learns."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.score = nn.Linear(8, 1)
        self.body = nn.Linear(8, 16)
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        gate = torch.sigmoid(self.score(x))
        return self.head(torch.relu(self.body(x)) * gate)


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=F.cross_entropy)
def net():
    return Net()
