"""A sigmoid before binary cross entropy with logits, which applies its own."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import contract


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x):
        logits = self.layers(x).squeeze(1)
        return logits


def batch(seed):
    g = torch.Generator().manual_seed(seed)
    return (torch.randn(8, 8, generator=g),), torch.randint(0, 2, (8,), generator=g).float()


@contract(batch=batch, loss=F.binary_cross_entropy_with_logits)
def net():
    return Net()
