"""A mask that is computed and dropped: masked_fill returns a new tensor."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ("dead-modules",)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        scores = self.query(x) @ self.key(x).transpose(1, 2)
        future = torch.ones_like(scores).triu(1) > 0
        scores = scores.masked_fill(future, -1e9)
        return self.head(scores.softmax(-1) @ self.value(x))


@contract(inputs="B T 8", targets=Labels("B T", classes=3), sizes={"T": (5, 7)}, loss=lambda o, t: F.cross_entropy(o.mT, t))
def net():
    return Net()
