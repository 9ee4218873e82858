"""An optimizer that is given a generator that was used up."""

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
    parameters = model.parameters()
    count = sum(p.numel() for p in parameters)
    return torch.optim.SGD(parameters, lr=1.0 / count)


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=F.cross_entropy, optimizer=optimizer)
def net():
    return Net()
