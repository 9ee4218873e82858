"""Noise from a generator of one's own that no seed reaches."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('backward', 'seeding')


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.head = nn.Linear(16, 3)
        self.generator = torch.Generator()

    def forward(self, x):
        if self.training:
            self.generator.manual_seed(int(torch.randint(2**31, ())))
            x = x + 0.1 * torch.randn(x.shape, generator=self.generator)
        return self.head(self.backbone(x))


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=F.cross_entropy)
def net():
    return Net()
