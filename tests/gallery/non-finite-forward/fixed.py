"""Attention over a row that is wholly masked: softmax of nothing but -inf."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 16, padding_idx=0)
        self.query = nn.Linear(16, 16)
        self.head = nn.Linear(16, 3)

    def forward(self, ids):
        x = self.embedding(ids)
        scores = self.query(x) @ x.transpose(1, 2)
        scores = scores.masked_fill((ids == 0)[:, None, :], -1e9)
        return self.head((scores.softmax(-1) @ x).mean(1))


IDS = torch.randint(1, 20, (4, 6), generator=torch.Generator().manual_seed(0))
IDS[1] = 0  # an empty sample


@contract(batch=((IDS,), torch.tensor([0, 1, 2, 1])), targets=Labels("B", classes=3), loss=F.cross_entropy)
def net():
    return Net()
