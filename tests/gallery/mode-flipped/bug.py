"""A forward that puts its own model into evaluation mode."""

import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.2))
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        self.eval()
        return self.head(self.body(x))


@contract(inputs="B 6", targets=Labels("B", classes=3), loss=F.cross_entropy)
def net():
    return Net()
