"""Gradient reversal as a module with a method named backward, which autograd does not call."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import contract

CHECKS = ("backward", "dead-modules")


class Reversal(nn.Module):
    def forward(self, x):
        return x

    def backward(self, gradient):
        return -gradient


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.label, self.domain = nn.Linear(8, 16), nn.Linear(16, 3), nn.Linear(16, 1)
        self.reversal = Reversal()

    def forward(self, x):
        h = self.body(x).relu()
        return self.label(h), self.domain(self.reversal(h)).squeeze(1)


def loss(output, targets):
    labels, domains = targets
    return F.cross_entropy(output[0], labels) + F.binary_cross_entropy_with_logits(output[1], domains)


def batch(seed):
    draw = torch.Generator().manual_seed(seed)
    rows, labels = torch.randn(6, 8, generator=draw), torch.randint(0, 3, (6,), generator=draw)
    return (rows,), (labels, torch.randint(0, 2, (6,), generator=draw).float())


@contract(batch=batch, loss=loss)
def net():
    return Net()
