"""More pools than the smallest image has room for."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('backward',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.pool = nn.MaxPool2d(16)
        self.head = nn.Linear(4, 3)

    def forward(self, image):
        return self.head(self.pool(torch.relu(self.conv(image))).mean((2, 3)))


@contract(inputs="B 3 8 8", targets=Labels("B", classes=3), loss=F.cross_entropy)
def net():
    return Net()
