"""Logits whose class dimension stands last."""

import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, Tokens, contract

CHECKS = ('backward',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(12, 16)
        self.rnn = nn.GRU(16, 16, batch_first=True)
        self.head = nn.Linear(16, 12)

    def forward(self, ids):
        return self.head(self.rnn(self.embedding(ids))[0])


def loss(output, targets):
    return F.cross_entropy(output.transpose(1, 2), targets)


@contract(inputs=Tokens("B T", vocab=12), sizes={"B": 3, "T": 5}, targets=Labels("B T", classes=12), loss=loss)
def net():
    return Net()
