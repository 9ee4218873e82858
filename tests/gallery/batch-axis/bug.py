"""A recurrent layer that takes the time of batch-first sequences for their batch."""

import torch
from torch import nn

from pytest_torchcheck import Contract

CHECKS = ('batch-independence',)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(6, 8)
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        return self.head(self.rnn(x)[0])


X = torch.randn(5, 7, 6, generator=torch.Generator().manual_seed(0))
contract = Contract(model=Tagger, batch=((X,), None), name="tagger")
