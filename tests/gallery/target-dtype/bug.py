"""Integer targets in binary cross entropy."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import contract

CHECKS = ('backward',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x):
        return self.layers(x).squeeze(1)


def batch(seed):
    g = torch.Generator().manual_seed(seed)
    targets = torch.tensor([0, 1, 1, 0])
    return (torch.randn(4, 8, generator=g),), targets


@contract(batch=batch, loss=F.binary_cross_entropy_with_logits)
def net():
    return Net()
