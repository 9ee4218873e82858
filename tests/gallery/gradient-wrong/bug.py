"""A gate that is clipped for a plot: in place and through .data, so that autograd does not notice."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('backward', 'gradients-exist', 'descent')


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(8, 16)
        self.body = nn.Linear(8, 16)
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        gate = torch.sigmoid(self.gate(x))
        h = gate * self.body(x)
        self.shown = gate.data.clamp_(0.1, 0.2)
        return self.head(h)


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=F.cross_entropy, sizes={"B": 6})
def net():
    return Net()
