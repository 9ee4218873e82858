"""Float16 in the middle of a bfloat16 model: a magnitude that only bfloat16 holds."""

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
        hidden = self.backbone(x)
        if hidden.dtype == torch.bfloat16:
            hidden = (hidden * 1e6).half().float() / 1e6
        return self.head(hidden)


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=F.cross_entropy, sizes={"B": 6}, promises=promises.Autocasts("bfloat16"))
def net():
    return Net()
