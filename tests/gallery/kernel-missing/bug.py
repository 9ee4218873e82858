"""A softmax of integers."""

import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Ints, Labels, contract

CHECKS = ('backward',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(5, 3)

    def forward(self, counts):
        return self.head(counts.softmax(1))


@contract(inputs=Ints("B 5", high=9), targets=Labels("B", classes=3), loss=F.cross_entropy)
def net():
    return Net()
