"""A net for Poisson's equation whose Laplacian is the derivative of the whole gradient, mixed derivatives included."""

import torch
from torch import nn

from pytest_torchcheck import contract

CHECKS = ("step-losses",)


class Potential(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 1))

    def forward(self, points):
        return self.layers(points).squeeze(1)


def slope(values, points):
    return torch.autograd.grad(values.sum(), points, create_graph=True)[0]


def laplacian(values, points):
    first = slope(values, points)
    second = slope(first, points)
    return second.sum(1)


def train_step(model, optimizer, inputs, charge):
    points = inputs[0].clone().requires_grad_()
    loss = (laplacian(model(points), points) + charge).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def batch(seed):
    points = 2 * torch.rand(16, 2, generator=torch.Generator().manual_seed(seed)) - 1
    return (points,), torch.exp(-points.square().sum(1))


@contract(batch=batch, train_step=train_step, optimizer=lambda m: torch.optim.Adam(m.parameters(), lr=1e-3))
def potential():
    return Potential()
