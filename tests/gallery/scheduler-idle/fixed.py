"""Two optimizers, each with a schedule, of which one is stepped."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ("scheduler-order",)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Linear(8, 16)
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.trunk(x)))


def optimizer(model):
    trunk = torch.optim.SGD(model.trunk.parameters(), lr=0.1)
    head = torch.optim.SGD(model.head.parameters(), lr=0.2)
    schedules = [torch.optim.lr_scheduler.ExponentialLR(each, 0.9) for each in (trunk, head)]
    return [trunk, head], schedules


def train_step(model, made, inputs, targets):
    optimizers, schedules = made
    loss = F.cross_entropy(model(*inputs), targets)
    for each in optimizers:
        each.zero_grad()
    loss.backward()
    for each in optimizers:
        each.step()
    for schedule in schedules:
        schedule.step()
    return loss


@contract(
    inputs="B 8",
    targets=Labels("B", classes=3),
    loss=F.cross_entropy,
    optimizer=optimizer,
    train_step=train_step,
)
def net():
    return Net()
