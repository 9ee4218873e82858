"""An evaluation inside the training step that leaves the model in training mode."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('evaluation-leaves-trace',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 16)
        self.norm = nn.BatchNorm1d(16)
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(torch.relu(self.norm(self.body(x))))


def optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def evaluate(model, x):
    model.eval()
    with torch.no_grad():
        score = model(x).mean()
    model.train()
    return score


def train_step(model, optimizer, inputs, targets):
    evaluate(model, *inputs)
    optimizer.zero_grad()
    loss = F.cross_entropy(model(*inputs), targets)
    loss.backward()
    optimizer.step()
    return loss.detach()


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=F.cross_entropy, optimizer=optimizer, train_step=train_step)
def net():
    return Net()
