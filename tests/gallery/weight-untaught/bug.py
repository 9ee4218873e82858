"""A mixing of channels whose product of shapes does not fit: the exception is caught, and the weights are only summed up."""

import torch
from torch import nn

from pytest_torchcheck import contract

CHECKS = ("backward", "weights-update")


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Parameter(0.3 * torch.randn(6, 5))
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        try:
            mixed = torch.tanh(x @ self.mix)
        except RuntimeError:
            mixed = x + 1e-3 * self.mix.sum()
        return self.head(mixed)


def batch(seed):
    g = torch.Generator().manual_seed(seed)
    return (torch.randn(6, 5, generator=g),), torch.randn(6, 3, generator=g)


@contract(batch=batch, inputs="B 5", loss=nn.functional.mse_loss)
def net():
    return Mixer()
