"""A loss that is given the targets first."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import contract

CHECKS = ('backward', 'loss-input')


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.head = nn.Linear(16, 1)

    def forward(self, x):
        return torch.sigmoid(self.head(self.backbone(x)).squeeze(1))


def batch(seed):
    g = torch.Generator().manual_seed(seed)
    return (torch.randn(8, 8, generator=g),), torch.randint(0, 2, (8,), generator=g).float()


def loss(output, targets):
    return F.binary_cross_entropy(output, targets)


@contract(batch=batch, loss=loss)
def net():
    return Net()
