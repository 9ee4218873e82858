"""A loss that is built anew from its own value."""

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


def loss(output, targets):
    value = F.cross_entropy(output, targets)
    return torch.tensor(value.item(), requires_grad=True)


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=loss)
def net():
    return Net()
