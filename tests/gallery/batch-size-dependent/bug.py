"""A sum over the batch that is divided by a fixed number."""

import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('backward', 'batch-sizes')


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        h = self.backbone(x)
        h = h * (h.shape[0] / 4)
        return self.head(h)


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=F.cross_entropy, sizes={"B": (2, 8)})
def net():
    return Net()
