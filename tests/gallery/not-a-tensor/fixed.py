"""A recurrent layer inside a Sequential: it returns a tuple."""

import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('backward',)


class Last(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(8, 16, batch_first=True)

    def forward(self, x):
        output, hidden = self.rnn(x)
        return output[:, -1]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(Last(), nn.Linear(16, 3))

    def forward(self, x):
        return self.layers(x)


@contract(inputs="B 5 8", targets=Labels("B", classes=3), loss=F.cross_entropy)
def net():
    return Net()
