"""A gather one beyond the last position."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('backward',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        last = torch.full((x.shape[0],), x.shape[1], dtype=torch.long, device=x.device)
        rows = x[torch.arange(x.shape[0], device=x.device), last - 1]
        return self.head(rows)


@contract(inputs="B 5 8", targets=Labels("B", classes=3), loss=F.cross_entropy)
def net():
    return Net()
