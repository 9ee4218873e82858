"""Scores that are written into memory which every call uses again."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ("eval-purity",)


class Scorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 16)
        self.head = nn.Linear(16, 3)
        self.room = None

    def forward(self, x):
        scores = self.head(torch.relu(self.body(x)))
        if self.training:
            return scores
        if self.room is None or self.room.shape != scores.shape:
            self.room = torch.empty_like(scores)
        self.room.copy_(scores)
        return self.room.clone()


@contract(inputs="B 6", targets=Labels("B", classes=3), loss=F.cross_entropy)
def scorer():
    torch.manual_seed(0)
    return Scorer()
