"""A parameter that stands twice in the optimizer's list."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('backward', 'optimizer-coverage')


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.backbone(x))


def optimizer(model):
    wanted = [*model.parameters(), *model.head.parameters()]
    return torch.optim.SGD(wanted, lr=1e-1)


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=F.cross_entropy, optimizer=optimizer)
def net():
    return Net()
