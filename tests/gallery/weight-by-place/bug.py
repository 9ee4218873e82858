"""An error in which later samples of the batch count less: a discount that was meant for the steps of an episode."""

import torch
from torch import nn

from pytest_torchcheck import contract

CHECKS = ("backward", "loss-weights", "target-ownership")


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(5, 16)
        self.value = nn.Linear(16, 1)

    def forward(self, states):
        return self.value(self.body(states).relu()).squeeze(-1)


def loss(values, returns):
    error = (values - returns).square()
    return (0.3 ** torch.arange(len(error)) * error).mean()


def batch(seed):
    g = torch.Generator().manual_seed(seed)
    return (torch.randn(6, 5, generator=g),), torch.randn(6, generator=g)


@contract(batch=batch, inputs="B 5", loss=loss)
def net():
    return Critic()
