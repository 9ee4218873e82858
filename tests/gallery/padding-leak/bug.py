"""A mean over all positions, padding included."""

import torch
from torch import nn

from pytest_torchcheck import Tokens, contract, promises

CHECKS = ('backward', 'padding-invariance')


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(12, 16, padding_idx=0)
        self.body = nn.Linear(16, 16)
        self.head = nn.Linear(16, 3)

    def forward(self, ids):
        h = torch.tanh(self.body(self.embedding(ids)))
        pooled = h.mean(1)
        return self.head(pooled)


@contract(inputs=Tokens("B T", vocab=12, pad=0), sizes={"B": (2, 5), "T": (3, 8)}, promises=(promises.PaddingInvariant(ids=0, pad=0),))
def net():
    return Net()
