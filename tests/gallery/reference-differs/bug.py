"""A block that was rewritten, and lost its rectifier."""

import torch
from torch import nn

from pytest_torchcheck import contract, promises

CHECKS = ('reference-match',)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.mix = nn.Linear(8, 8)

    def forward(self, x):
        return x + torch.relu(self.mix(self.norm(x)))


class Rewritten(Block):
    def forward(self, x):
        h = self.norm(x)
        h = self.mix(h)
        return x + h


def stack(block, width):
    return nn.Sequential(nn.Linear(4, 8), block(), nn.Linear(8, width))


def working():
    return stack(Block, 3)


@contract(inputs="B 4", promises=(promises.Matches(working),))
def net():
    return stack(Rewritten, 3)
