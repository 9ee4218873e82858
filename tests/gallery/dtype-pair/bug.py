"""NumPy's float64 in a float32 model."""

import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('backward',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.backbone(x))


def batch(seed):
    x = np.random.default_rng(seed).normal(size=(4, 8))
    return (torch.from_numpy(x),), torch.tensor([0, 1, 2, 1])


@contract(batch=batch, targets=Labels("B", classes=3), loss=F.cross_entropy)
def net():
    return Net()
