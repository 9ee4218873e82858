"""A schedule that decays where it was meant to warm up."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract, promises

CHECKS = ('schedule',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.backbone(x))


def optimizer(model):
    made = torch.optim.SGD(model.parameters(), lr=0.1)
    return made, torch.optim.lr_scheduler.LambdaLR(made, lambda step: max(0.25, 1 - step / 4))


def train_step(model, made, inputs, targets):
    optimizer, scheduler = made
    optimizer.zero_grad()
    loss = F.cross_entropy(model(*inputs), targets)
    loss.backward()
    optimizer.step()
    scheduler.step()
    return loss.detach()


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=F.cross_entropy, train_step=train_step, optimizer=optimizer, sizes={"B": 6}, promises=(promises.Schedule(lambda step: 0.1 * min(1.0, (step + 1) / 4)),))
def net():
    return Net()
