"""Targets that do not belong to their inputs: equal inputs, different labels."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('backward', 'overfit')


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.backbone(x))


def batch(seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(6, 8, generator=g)
    return (x,), torch.tensor([0, 1, 2, 0, 1, 2])


@contract(batch=batch, targets=Labels("B", classes=3), loss=F.cross_entropy)
def net():
    return Net()
