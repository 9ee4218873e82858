"""The derivative of sqrt at zero: two equal embeddings have distance 0."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import contract

CHECKS = ('backward', 'gradients-finite')


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(8, 4)

    def forward(self, a, b):
        gap = (self.encoder(a) - self.encoder(b)).pow(2).sum(1)
        return gap.sqrt()


def pairs(seed):
    a = torch.randn(6, 8, generator=torch.Generator().manual_seed(seed))
    b = a.clone()
    b[3:] = b[3:].flip(0)  # the first pairs are equal
    return (a, b), torch.tensor([0.0, 0, 0, 1, 1, 1])


@contract(batch=pairs, loss=F.mse_loss)
def net():
    return Net()
