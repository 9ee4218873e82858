"""A focal loss whose weight is taken of the batch's mean."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract


def focal(logits, targets, gamma=2.0):
    ce = F.cross_entropy(logits, targets, reduction="none")
    return ((1 - torch.exp(-ce)) ** gamma * ce).mean()


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=focal)
def net():
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
