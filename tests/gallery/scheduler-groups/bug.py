"""A parameter group that is added when the scheduler has been made."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR

from pytest_torchcheck import contract

CHECKS = ('backward',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(8, 16), nn.Linear(16, 2)

    def forward(self, x):
        return self.head(torch.relu(self.body(x)))


def make(model):
    optimizer = torch.optim.SGD(model.head.parameters(), lr=0.1)
    scheduler = OneCycleLR(optimizer, max_lr=0.1, total_steps=100)
    optimizer.add_param_group({"params": model.body.parameters(), "lr": 0.1})
    return optimizer, scheduler


def train_step(model, made, inputs, targets):
    optimizer, scheduler = made
    optimizer.zero_grad()
    loss = F.mse_loss(model(*inputs), targets)
    loss.backward()
    optimizer.step()
    scheduler.step()
    return loss.detach()


@contract(batch=((torch.randn(6, 8),), torch.randn(6, 2)), train_step=train_step, optimizer=make)
def net():
    return Net()
