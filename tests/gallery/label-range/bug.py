"""Labels that count from one."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import contract


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.backbone(x))


def batch(seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(12, 8, generator=g)
    labels = torch.arange(12) % 3
    return (x,), labels + 1


@contract(batch=batch, loss=F.cross_entropy)
def net():
    return Net()
