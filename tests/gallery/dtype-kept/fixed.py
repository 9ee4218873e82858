"""A module that overrides how it is moved and converted."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('backward', 'dtype-conversion')


class Table(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("values", torch.linspace(0.5, 1.5, 8))

    def _apply(self, fn, recurse=True):
        return super()._apply(fn, recurse)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = Table()
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head((x * self.table.values).to(x.dtype))


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=F.cross_entropy)
def net():
    return Net()
