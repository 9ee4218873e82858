"""A regression on class indices."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('backward', 'loss-input',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.head = nn.Linear(16, 1)

    def forward(self, x):
        return self.head(self.backbone(x)).squeeze(1)


def loss(output, targets):
    return F.mse_loss(output, targets.float())


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=loss)
def net():
    return Net()
