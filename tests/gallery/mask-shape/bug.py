"""A padding mask for an attention that reads time first."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('backward',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2)
        self.head = nn.Linear(8, 3)

    def forward(self, x, padded):
        h, _ = self.attention(x, x, x, key_padding_mask=padded)
        return self.head(torch.relu(h).mean(1))


def batch(seed):
    g = torch.Generator().manual_seed(seed)
    return (torch.randn(4, 6, 8, generator=g), torch.zeros(4, 6) > 0), torch.tensor([0, 1, 2, 0])


@contract(batch=batch, targets=Labels("B", classes=3), loss=F.cross_entropy)
def net():
    return Net()
