"""A skip connection around a stride that halves an odd length."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('backward',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Conv1d(2, 4, 2, stride=2)
        self.up = nn.ConvTranspose1d(4, 2, 2, stride=2)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        h = self.up(torch.relu(self.down(x)))
        both = torch.cat([x, F.pad(h, (0, x.shape[2] - h.shape[2]))], dim=1)
        return self.head(both.mean(2))


@contract(inputs="B 2 T", sizes={"T": 15}, targets=Labels("B", classes=3), loss=F.cross_entropy)
def net():
    return Net()
