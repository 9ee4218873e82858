"""A skip that outlived its reason."""

import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('eval-determinism',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.backbone(x))


SKIP = {"eval-determinism": "the old model drew at random"}


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=F.cross_entropy, skip=SKIP)
def net():
    return Net()
