"""Two towers that are meant to stay equal, and only one is trained."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract, promises

CHECKS = ('replicated',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(8, 3)
        self.b = nn.Linear(8, 3)
        self.b.load_state_dict(self.a.state_dict())

    def forward(self, x):
        return self.a(x)


def optimizer(model):
    return torch.optim.SGD(model.a.parameters(), lr=0.1)


def train_step(model, optimizer, inputs, targets):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(*inputs), targets)
    loss.backward()
    optimizer.step()
    model.b.load_state_dict(model.a.state_dict())
    return loss.detach()


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=F.cross_entropy, train_step=train_step, optimizer=optimizer, sizes={"B": 6}, promises=(promises.Replicated("a.weight", "b.weight"),))
def net():
    return Net()
