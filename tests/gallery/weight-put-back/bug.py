"""A filter that starts at an edge detector, and is meant to be trained from there."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import contract

CHECKS = ("backward", "repeatable-steps", "weights-update")


class Edges(nn.Module):
    def __init__(self):
        super().__init__()
        self.filter = nn.Parameter(torch.empty(1, 1, 3))
        self.head = nn.Linear(8, 2)
        self.reset()

    def reset(self):
        with torch.no_grad():
            self.filter.copy_(torch.tensor([[[-1.0, 0.25, 1.0]]]))

    def forward(self, x):
        self.reset()
        return self.head(F.conv1d(x[:, None], self.filter).squeeze(1))


def batch(seed):
    g = torch.Generator().manual_seed(seed)
    return (torch.randn(6, 10, generator=g),), torch.randint(2, (6,), generator=g)


@contract(batch=batch, inputs="B 10", loss=F.cross_entropy)
def net():
    return Edges()
