"""A forward that takes an entry out of the caller's dict."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('inputs-unchanged',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 3)

    def forward(self, sample):
        x = sample["x"]
        return self.head(x)


def batch(seed):
    g = torch.Generator().manual_seed(seed)
    return ({"x": torch.randn(5, 8, generator=g)},), torch.randint(0, 3, (5,), generator=g)


@contract(batch=batch, targets=Labels("B", classes=3), loss=F.cross_entropy)
def net():
    return Net()
