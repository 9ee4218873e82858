"""A bias that switches every unit off."""

import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('backward', 'dead-units')


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.head = nn.Linear(16, 3)
        nn.init.constant_(self.backbone[0].bias, 0.1)

    def forward(self, x):
        return self.head(self.backbone(x)) + 0.01 * x[:, :3]


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=F.cross_entropy)
def net():
    return Net()
