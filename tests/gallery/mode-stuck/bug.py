"""A train() that does not reach the children."""

import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.head = nn.Linear(16, 3)
        self.drop = nn.Dropout(0.3)

    def train(self, mode=True):
        self.training = mode
        return self

    def forward(self, x):
        return self.head(self.drop(self.backbone(x)))


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=F.cross_entropy)
def net():
    return Net()
