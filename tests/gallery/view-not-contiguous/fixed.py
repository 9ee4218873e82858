"""A view behind a transpose."""

import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('backward',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(40, 3)

    def forward(self, x):
        h = x.transpose(1, 2)
        return self.head(h.reshape(h.shape[0], -1))


@contract(inputs="B 5 8", targets=Labels("B", classes=3), loss=F.cross_entropy)
def net():
    return Net()
