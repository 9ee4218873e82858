"""Self-distillation with a teacher that follows the student: the update writes to the student."""

import copy

import torch
from torch import nn

from pytest_torchcheck import Contract

CHECKS = ('averages-follow',)


class Distilled(nn.Module):
    def __init__(self):
        super().__init__()
        self.student = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)

    def forward(self, x):
        return self.student(x)


@torch.no_grad()
def follow(average, weights, decay=0.9):
    for mean, weight in zip(average, weights):
        mean.lerp_(weight, 1 - decay)


def step(model, optimizer, inputs, targets):
    optimizer.zero_grad()
    wanted = 0.5 * (model.teacher(*inputs) + targets)
    loss = (model.student(*inputs) - wanted).pow(2).mean()
    loss.backward()
    optimizer.step()
    follow(model.student.parameters(), model.teacher.parameters())
    return loss.detach()


contract = Contract(
    model=Distilled,
    optimizer=lambda model: torch.optim.SGD(model.student.parameters(), lr=0.1),
    train_step=step,
    batch=(torch.randn(8, 6), torch.randn(8, 4)),
    name="distilled",
)
