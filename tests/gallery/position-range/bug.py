"""A position table that is shorter than the sequences."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, Tokens, contract

CHECKS = ('backward',)


class Encoder(nn.Module):
    def __init__(self, length):
        super().__init__()
        self.tokens = nn.Embedding(12, 16)
        self.positions = nn.Embedding(length, 16)

    def forward(self, ids):
        return self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder(length=16)
        self.head = nn.Linear(16, 3)

    def forward(self, ids):
        return self.head(self.encoder(ids).mean(1))


@contract(inputs=Tokens("B T", vocab=12), targets=Labels("B", classes=3), loss=F.cross_entropy, sizes={"T": (20, 24)})
def net():
    return Net()
