"""Images whose channels stand last."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('backward',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.head = nn.Linear(4, 3)

    def forward(self, image):
        h = torch.relu(self.conv(image))
        return self.head(h.mean((2, 3)))


@contract(inputs="B 8 8 3", targets=Labels("B", classes=3), loss=F.cross_entropy)
def net():
    return Net()
