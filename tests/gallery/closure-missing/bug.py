"""LBFGS, whose step is called without the closure that it needs."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('backward', 'weights-update')


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.backbone(x))


def optimizer(model):
    return torch.optim.LBFGS(model.parameters())


def train_step(model, optimizer, inputs, targets):
    def closure():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(*inputs), targets)
        loss.backward()
        return loss

    loss = closure()
    optimizer.step()
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
