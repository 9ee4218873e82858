"""A teacher that is its student after every step: the decay and its complement are swapped."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import contract


class Student(nn.Module):
    def __init__(self):
        super().__init__()
        self.online = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 3))
        self.teacher = copy.deepcopy(self.online).requires_grad_(False)

    def forward(self, x):
        return self.online(x) if self.training else self.teacher(x)


@torch.no_grad()
def follow(model, decay=0.99):
    for slow, fast in zip(model.teacher.parameters(), model.online.parameters()):
        slow.mul_(decay).add_(fast, alpha=1 - decay)


def step(model, optimizer, inputs, targets):
    model.train()
    optimizer.zero_grad()
    loss = F.mse_loss(model(*inputs), targets)
    loss.backward()
    optimizer.step()
    follow(model)
    return loss


def optimizer(model):
    return torch.optim.SGD(model.online.parameters(), lr=0.05)


def batch(seed):
    g = torch.Generator().manual_seed(seed)
    return (torch.randn(8, 6, generator=g),), torch.randn(8, 3, generator=g)


CHECKS = ("backward", "averages-follow", "weights-update")


@contract(batch=batch, loss=F.mse_loss, optimizer=optimizer, train_step=step)
def net():
    return Student()
