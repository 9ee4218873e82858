"""A regression whose mean squared error is divided by the size of the batch once more, as a sum would be."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import contract

CHECKS = ("backward", "loss-weights", "target-ownership")


def loss(output, y):
    error = F.mse_loss(output, y)
    return error / len(y)


def batch(seed):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(6, 5, generator=generator),), torch.randn(6, 2, generator=generator)


@contract(batch=batch, inputs="B 5", targets="B 2", sizes={"B": (2, 8)}, loss=loss)
def net():
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2))
