"""A negative standard deviation."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('backward',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 6)

    def forward(self, x):
        mean, spread = self.head(x).chunk(2, dim=1)
        return torch.distributions.Normal(mean, spread).rsample()


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=F.cross_entropy)
def net():
    return Net()
