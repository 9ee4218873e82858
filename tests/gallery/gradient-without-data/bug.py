"""A step that adds noise to its gradients."""

import torch
from torch import nn

from pytest_torchcheck import contract

CHECKS = ("backward", "step-losses")


def train_step(model, optimizer, inputs, targets):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(*inputs), targets)
    loss.backward()
    for p in model.parameters():
        p.grad = p.grad.norm() * torch.randn_like(p)
    optimizer.step()
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
