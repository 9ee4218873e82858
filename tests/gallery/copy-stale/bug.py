"""A classifier that keeps a second copy of its prototypes for deployment."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import contract

CHECKS = ("backward", "repeatable-steps", "weights-update")


class Prototypes(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(5, 8)
        self.centres = nn.Parameter(torch.randn(3, 8))
        self.register_buffer("deployed", self.centres.detach().clone())

    def forward(self, x):
        centres = self.centres if self.training else self.deployed
        return -torch.cdist(self.body(x), centres)


def batch(seed):
    g = torch.Generator().manual_seed(seed)
    return (torch.randn(6, 5, generator=g),), torch.randint(3, (6,), generator=g)


@contract(batch=batch, inputs="B 5", loss=F.cross_entropy)
def net():
    return Prototypes()
