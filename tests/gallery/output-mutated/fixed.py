"""A loss that divides logits by its temperature in a new tensor."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import contract

CHECKS = ('backward', 'loss-arguments')


def loss(logits, labels):
    logits = logits / 0.1
    return F.cross_entropy(logits, labels)


def batch(seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(6, 8, generator=generator), torch.arange(6) % 3


@contract(batch=batch, loss=loss)
def net():
    return nn.Linear(8, 3)
