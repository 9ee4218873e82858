"""A recurrent layer that is built for other features."""

import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('backward',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(8, 16, batch_first=True)
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])


@contract(inputs="B 5 8", targets=Labels("B", classes=3), loss=F.cross_entropy)
def net():
    return Net()
