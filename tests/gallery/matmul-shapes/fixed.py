"""A linear layer that is built for another number of features than flattening gives."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.fc = nn.Linear(144, 3)

    def forward(self, image):
        return self.fc(torch.relu(self.conv(image)).flatten(1))


@contract(inputs="B 3 8 8", targets=Labels("B", classes=3), loss=F.cross_entropy)
def net():
    return Net()
