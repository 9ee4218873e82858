"""A detector's loss that is divided by the number of objects, which is 0 for an empty image."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import contract

CHECKS = ("backward", "edge-targets", "target-ownership")


class Cells(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Conv2d(1, 8, 3, stride=2, padding=1)
        self.objectness = nn.Conv2d(8, 1, 1)

    def forward(self, image):
        return self.objectness(torch.relu(self.encode(image))).flatten(1)


def loss(logits, objects):
    each = F.binary_cross_entropy_with_logits(logits, objects, reduction="none")
    count = objects.sum()
    return each.sum() / count


def batch(seed):
    g = torch.Generator().manual_seed(seed)
    objects = (torch.rand(6, 16, generator=g) < 0.3).float()
    objects[2] = 0
    return (torch.randn(6, 1, 8, 8, generator=g),), objects


@contract(batch=batch, inputs="B 1 8 8", sizes={"B": (1, 8)}, loss=loss)
def net():
    return Cells()
