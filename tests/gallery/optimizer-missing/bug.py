"""An optimizer that holds the backbone only."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.backbone(x))


def optimizer(model):
    return torch.optim.Adam(model.backbone.parameters(), lr=1e-2)


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=F.cross_entropy, optimizer=optimizer)
def net():
    return Net()
