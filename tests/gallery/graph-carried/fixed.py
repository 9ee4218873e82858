"""A hidden state that goes from step to step with its graph."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('graph-kept',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(8, 16)
        self.head = nn.Linear(16, 3)

    def forward(self, x, hidden=None):
        hidden = self.cell(x, hidden)
        return self.head(hidden), hidden


def make():
    carried = {"hidden": None}

    def optimizer(model):
        carried["hidden"] = None
        return torch.optim.SGD(model.parameters(), lr=0.1)

    def train_step(model, optimizer, inputs, targets):
        optimizer.zero_grad()
        logits, hidden = model(*inputs, hidden=carried["hidden"])
        loss = F.cross_entropy(logits, targets)
        loss.backward()
        optimizer.step()
        carried["hidden"] = hidden.detach()
        return loss.detach()

    return optimizer, train_step


optimizer, train_step = make()


def loss(output, targets):
    return F.cross_entropy(output[0], targets)


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=loss, train_step=train_step, optimizer=optimizer, sizes={"B": 6})
def net():
    return Net()
