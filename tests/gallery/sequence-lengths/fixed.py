"""Sequences are packed in the order of the batch, not by length."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import contract

CHECKS = ('backward',)


def batch(seed):
    x = torch.randn(4, 6, 8, generator=torch.Generator().manual_seed(seed))
    return (x, torch.tensor([2, 6, 3, 5])), torch.tensor([0, 1, 2, 0])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(8, 16, batch_first=True)
        self.head = nn.Linear(16, 3)

    def forward(self, x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        _, state = self.rnn(packed)
        return self.head(state[-1])


@contract(inputs=None, targets=None, loss=F.cross_entropy, batch=batch)
def net():
    return Net()
