"""A convolution that is padded on both sides: it sees the next position."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import contract, promises

CHECKS = ('backward', 'causality')


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(4, 8, kernel_size=3)
        self.head = nn.Conv1d(8, 4, kernel_size=1)

    def forward(self, x):
        padded = F.pad(x, (1, 1))
        return self.head(torch.relu(self.conv(padded)))


@contract(inputs="B 4 T", sizes={"B": (2, 4), "T": (6, 12)}, promises=(promises.Causal(dim=2, output_dim=2),))
def net():
    return Net()
