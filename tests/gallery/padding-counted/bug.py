"""A loss that averages over padding as well."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import contract, promises

CHECKS = ('backward', 'padding-loss')


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(12, 16, padding_idx=0)
        self.head = nn.Linear(16, 12)

    def forward(self, ids):
        return self.head(torch.tanh(self.embedding(ids)))


def loss(output, targets):
    return F.cross_entropy(output.transpose(1, 2), targets)


def batch(seed):
    ids = torch.randint(1, 12, (4, 9), generator=torch.Generator().manual_seed(seed))
    ids[1:, 6:] = 0
    return (ids,), ids


@contract(batch=batch, loss=loss, promises=(promises.PaddingInvariant(ids=0, pad=0),))
def net():
    return Net()
