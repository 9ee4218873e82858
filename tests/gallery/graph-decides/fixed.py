"""A part of the forward that runs only where gradients are recorded."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.coarse, self.fine = nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x):
        scores = self.coarse(x)
        scores = scores + torch.tanh(self.fine(x))
        return scores


@contract(inputs="B 6", targets=Labels("B", classes=3), loss=F.cross_entropy)
def net():
    return Net()
