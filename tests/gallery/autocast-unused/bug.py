"""A model whose forward switches autocast off around all of its layers."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract, promises

CHECKS = ('autocast',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        with torch.autocast(x.device.type, enabled=False):
            hidden = self.backbone(x)
            scores = self.head(hidden)
        return scores


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=F.cross_entropy, sizes={"B": 6}, promises=promises.Autocasts("bfloat16"))
def net():
    return Net()
