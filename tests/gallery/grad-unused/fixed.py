"""A gradient penalty by a tensor that the output does not come from."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('backward',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        point = x.detach().requires_grad_(True)
        energy = self.head(point).square().sum()
        (slope,) = torch.autograd.grad(energy, point, create_graph=True)
        return self.head(x + slope)


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=F.cross_entropy)
def net():
    return Net()
