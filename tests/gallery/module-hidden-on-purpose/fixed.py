"""A teacher in a list of one, which gets gradients all the same."""

import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('registration',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.teacher = [nn.Linear(8, 8).requires_grad_(False)]
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(x + self.teacher[0](x))


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=F.cross_entropy)
def net():
    return Net()
