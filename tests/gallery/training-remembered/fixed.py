"""Outputs that are centred by the mean output of the training batches, of which the model keeps a running average."""

import torch
from torch import nn

from pytest_torchcheck import contract

CHECKS = ("backward", "repeatable-steps", "weights-update")


class Centred(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 3)
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x):
        y = self.layer(x)
        if self.training:
            self.mean = self.mean.lerp(y.detach().mean(0), 0.1)
        return y - self.mean


def batch(seed):
    g = torch.Generator().manual_seed(seed)
    return (torch.randn(6, 5, generator=g),), torch.randn(6, 3, generator=g)


@contract(batch=batch, inputs="B 5", loss=nn.functional.mse_loss)
def net():
    return Centred()
