"""Attention that joins its heads without moving them behind the positions."""

import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ("axis-order",)


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.project, self.join = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.project(x).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value)
        return self.join(mixed.transpose(1, 2).reshape(batch, length, width))


@contract(
    inputs="B T 8",
    targets=Labels("B T", classes=3),
    sizes={"T": (5, 9)},
    loss=lambda o, t: F.cross_entropy(o.mT, t),
)
def net():
    return nn.Sequential(Attention(8, 4), nn.Linear(8, 3))
