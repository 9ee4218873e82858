"""A head that is frozen by accident."""

import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract, promises

CHECKS = ('gradients-exist',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.head = nn.Linear(16, 3)
        self.head.requires_grad_(False)

    def forward(self, x):
        return self.head(self.backbone(x))


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=F.cross_entropy, promises=(promises.Trainable("head.weight"),))
def net():
    return Net()
