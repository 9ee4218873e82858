"""A tagger whose logits are transposed for cross entropy."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import contract

CHECKS = ('backward', 'target-alignment')


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(12, 16)
        self.rnn = nn.GRU(16, 16, batch_first=True)
        self.head = nn.Linear(16, 5)

    def forward(self, ids):
        return self.head(self.rnn(self.embedding(ids))[0])


def loss(output, tags):
    return F.cross_entropy(output.transpose(1, 2), tags)


def batch(seed):
    ids = torch.randint(0, 12, (4, 9), generator=torch.Generator().manual_seed(seed))
    return (ids,), ids % 5


@contract(batch=batch, loss=loss)
def net():
    return Net()
