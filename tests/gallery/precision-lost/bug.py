"""A small number that is added to a large one and taken out again."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('low-precision',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        counted = 4096 + torch.sigmoid(self.head(x))
        return counted - 4096


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=F.cross_entropy, dtypes=("float32", "bfloat16"))
def net():
    return Net()
