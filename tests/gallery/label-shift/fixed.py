"""A language model that is trained to repeat the present token."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import contract, promises

CHECKS = ('backward', 'label-shift')


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(12, 16)
        self.rnn = nn.GRU(16, 16, batch_first=True)
        self.head = nn.Linear(16, 12)

    def forward(self, ids):
        return self.head(self.rnn(self.embedding(ids))[0])


def loss(output, ids):
    return F.cross_entropy(output[:, :-1].transpose(1, 2), ids[:, 1:])


def batch(seed):
    ids = torch.randint(0, 12, (4, 9), generator=torch.Generator().manual_seed(seed))
    return (ids,), ids


@contract(batch=batch, loss=loss, promises=(promises.Causal(),))
def net():
    return Net()
