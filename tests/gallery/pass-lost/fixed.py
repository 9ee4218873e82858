"""Gradients of two micro-batches are applied together, and those of the last one alone."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import contract


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.05)


def step(model, optimizer, inputs, targets):
    parts = list(zip(inputs[0].split(2), targets.split(2), strict=True))
    optimizer.zero_grad()
    for number, (x, y) in enumerate(parts):
        loss = F.mse_loss(model(x), y)
        (loss / 2).backward()
        full = (number + 1) % 2 == 0 or number + 1 == len(parts)
        if full:
            optimizer.step()
            optimizer.zero_grad()
    return loss.detach()


@contract(
    inputs="B 8", targets="B 3", sizes={"B": 10}, loss=F.mse_loss, optimizer=sgd, train_step=step
)
def regression():
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
