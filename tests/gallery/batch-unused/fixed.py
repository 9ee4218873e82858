"""A step that applies the gradients of two batches together."""

import torch
from torch import nn

from pytest_torchcheck import contract

CHECKS = ("backward", "repeatable-steps", "weights-update")

calls = 0


def train_step(model, optimizer, inputs, targets):
    global calls
    calls += 1
    loss = nn.functional.mse_loss(model(*inputs), targets) / 2
    loss.backward()
    if calls % 2 == 0:
        optimizer.step()
        optimizer.zero_grad()
    return loss.detach()


def batch(seed):
    g = torch.Generator().manual_seed(seed)
    return (torch.randn(6, 5, generator=g),), torch.randn(6, 3, generator=g)


@contract(
    batch=batch,
    inputs="B 5",
    loss=nn.functional.mse_loss,
    optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    train_step=train_step,
)
def net():
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
