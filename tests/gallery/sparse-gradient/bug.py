"""Adam on the sparse gradients of an embedding."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, Tokens, contract

CHECKS = ('backward', 'weights-update')


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(12, 16, sparse=True)
        self.head = nn.Linear(16, 3)

    def forward(self, ids):
        return self.head(self.tokens(ids).mean(1))


def optimizer(model):
    return torch.optim.Adam(model.parameters())


@contract(inputs=Tokens("B T", vocab=12), targets=Labels("B", classes=3), loss=F.cross_entropy, optimizer=optimizer)
def net():
    return Net()
