"""A table of all pairs, where memory was to grow linearly."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('memory-growth',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 16)
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        h = torch.relu(self.body(x))
        h = h.cumsum(1) / torch.arange(1, h.shape[1] + 1, device=h.device)[:, None]
        return self.head(h.mean(1))


@contract(inputs="B T 8", targets=Labels("B", classes=3), loss=F.cross_entropy, sizes={"B": 2, "T": (8, 512)}, growth={"T": 1})
def net():
    return Net()
