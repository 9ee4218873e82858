"""A helper that steps, and a step that does so after it."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('step-protocol',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.backbone(x))


def optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def learn(loss, optimizer):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def train_step(model, optimizer, inputs, targets):
    loss = F.cross_entropy(model(*inputs), targets)
    learn(loss, optimizer)
    optimizer.step()
    return loss.detach()


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=F.cross_entropy, train_step=train_step, optimizer=optimizer, sizes={"B": 6})
def net():
    return Net()
