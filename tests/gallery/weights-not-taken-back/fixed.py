"""Sharpness-aware minimisation that takes its move back."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ("step-protocol",)


def uphill(model):
    return [0.05 * p.grad for p in model.parameters()]


def step(model, optimizer, inputs, targets):
    optimizer.zero_grad()
    F.cross_entropy(model(*inputs), targets).backward()
    way = uphill(model)
    with torch.no_grad():
        for p, part in zip(model.parameters(), way):
            p.add_(part)
    optimizer.zero_grad()
    loss = F.cross_entropy(model(*inputs), targets)
    loss.backward()
    with torch.no_grad():
        for p, part in zip(model.parameters(), way):
            p.sub_(part)
    optimizer.step()
    return loss.detach()


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=F.cross_entropy, train_step=step, optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=1e-2))
def net():
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
