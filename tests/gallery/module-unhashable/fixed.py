"""A layer that compares by its sizes, and can no longer be in a set."""

import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ("backward",)


class Sized(nn.Module):
    def __init__(self, width, classes):
        super().__init__()
        self.width, self.classes = width, classes
        self.layer = nn.Linear(width, classes)

    def __eq__(self, other):
        return isinstance(other, Sized) and self.width == other.width

    __hash__ = nn.Module.__hash__

    def forward(self, x):
        return self.layer(x)


@contract(inputs="B 6", targets=Labels("B", classes=3), loss=F.cross_entropy)
def net():
    return nn.Sequential(Sized(6, 8), nn.ReLU(), Sized(8, 3))
