"""Class labels that are floating-point numbers."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import contract

CHECKS = ('backward',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.backbone(x))


def batch(seed):
    g = torch.Generator().manual_seed(seed)
    labels = torch.tensor([0.0, 1.0, 2.0, 1.0])
    return (torch.randn(4, 8, generator=g),), labels


@contract(batch=batch, loss=F.cross_entropy)
def net():
    return Net()
