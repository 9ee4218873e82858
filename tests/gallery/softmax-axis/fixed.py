"""Attention whose softmax runs over the queries."""

import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ("weighted-means",)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        scores = self.query(x) @ self.key(x).transpose(1, 2)
        weights = scores.softmax(dim=-1)
        return self.head(weights @ self.value(x))


@contract(
    inputs="B T 8",
    targets=Labels("B T", classes=3),
    sizes={"T": (5, 7)},
    loss=lambda o, t: F.cross_entropy(o.mT, t),
)
def net():
    return Net()
