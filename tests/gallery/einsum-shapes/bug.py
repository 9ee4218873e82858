"""An einsum whose letters do not fit."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('backward',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(0.1 * torch.ones(3, 8))

    def forward(self, x):
        return torch.einsum("bi,ij->bj", x, self.weight)


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=F.cross_entropy)
def net():
    return Net()
