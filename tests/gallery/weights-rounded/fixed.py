"""An evaluation of a copy in bfloat16."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import contract

CHECKS = ('evaluation-leaves-trace',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(8, 16), nn.Linear(16, 2)

    def forward(self, x):
        return self.head(torch.relu(self.body(x)))


def optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


@torch.no_grad()
def validate(model, x, y):
    fast = copy.deepcopy(model).bfloat16()
    score = F.mse_loss(fast(x.bfloat16()).float(), y)
    return score


def train_step(model, optimizer, inputs, targets):
    optimizer.zero_grad()
    loss = F.mse_loss(model(*inputs), targets)
    loss.backward()
    optimizer.step()
    validate(model, *inputs, targets)
    return loss.detach()


@contract(batch=((torch.randn(6, 8),), torch.randn(6, 2)), train_step=train_step, optimizer=optimizer)
def net():
    return Net()
