"""Ids that come as floating-point numbers."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('backward',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(12, 16)
        self.head = nn.Linear(16, 3)

    def forward(self, ids):
        return self.head(self.tokens(ids).mean(1))


@contract(batch=((torch.tensor([[1.0, 2.0], [3.0, 4.0]]),), torch.tensor([0, 2])), targets=Labels("B", classes=3), loss=F.cross_entropy)
def net():
    return Net()
