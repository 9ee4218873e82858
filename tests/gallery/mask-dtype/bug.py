"""A mask of numbers."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('backward',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 3)

    def forward(self, x, mask):
        return self.head(x.masked_fill(mask, 0.0))


def batch(seed):
    g = torch.Generator().manual_seed(seed)
    return (torch.randn(4, 8, generator=g), torch.randint(0, 2, (4, 8), generator=g)), torch.tensor([0, 1, 2, 1])


@contract(batch=batch, targets=Labels("B", classes=3), loss=F.cross_entropy)
def net():
    return Net()
