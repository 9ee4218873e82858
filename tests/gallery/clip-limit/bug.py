"""A threshold that is not the one that was promised."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract, promises

CHECKS = ('gradient-clipping',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.backbone(x))


def optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def train_step(model, optimizer, inputs, targets):
    optimizer.zero_grad()
    loss = F.cross_entropy(100 * model(*inputs), targets)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 10.0)
    optimizer.step()
    return loss.detach()


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=F.cross_entropy, train_step=train_step, optimizer=optimizer, sizes={"B": 6}, promises=(promises.ClipsGradients(1.0),))
def net():
    return Net()
