"""A filter is flipped by a negative stride and handed to torch as it is."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('backward',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 3)
        self.window = np.hanning(8).astype(np.float32)

    def forward(self, x):
        window = torch.from_numpy(self.window[::-1])
        return self.head(x * window)


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=F.cross_entropy)
def net():
    return Net()
