"""A masked language model whose labels are ignored where tokens are hidden, and kept where they are given."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import contract

CHECKS = ("backward", "label-shift")


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(24, 16)
        self.positions = nn.Embedding(12, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, 24)

    def forward(self, ids):
        return self.head(self.layer(self.tokens(ids) + self.positions.weight[: ids.shape[1]]))


def batch(seed):
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(2, 24, (8, 12), generator=g)
    asked = torch.rand(ids.shape, generator=g) < 0.25
    labels = ids.masked_fill(~asked, -100)
    hidden = asked & (torch.rand(ids.shape, generator=g) < 0.8)  # the others keep their token
    return (ids.masked_fill(hidden, 1),), labels


def loss(logits, labels):
    return F.cross_entropy(logits.transpose(1, 2), labels)


@contract(batch=batch, loss=loss)
def masked():
    return Masked()
