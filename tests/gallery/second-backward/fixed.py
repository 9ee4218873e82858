"""A hidden state that is kept with its graph."""

import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('backward',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(8, 16)
        self.head = nn.Linear(16, 3)
        self.hidden = None

    def forward(self, x):
        if self.hidden is None or self.hidden.shape[0] != x.shape[0]:
            self.hidden = x.new_zeros(x.shape[0], 16)
        h = self.cell(x, self.hidden)
        self.hidden = h.detach()
        return self.head(h)


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=F.cross_entropy)
def net():
    return Net()
