"""An encoder that saves memory by keeping the graph of a part of the batch alone."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import contract

CHECKS = ("backward", "descent")


class Saving(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(5, 12)
        self.head = nn.Linear(12, 2)

    def forward(self, x):
        h = self.encoder(x).tanh()
        h = torch.cat((h[: len(h) // 2], h[len(h) // 2 :].detach()))
        return self.head(h)


def batch(seed):
    g = torch.Generator().manual_seed(seed)
    return (torch.randn(6, 5, generator=g),), torch.randint(2, (6,), generator=g)


@contract(batch=batch, inputs="B 5", loss=F.cross_entropy)
def net():
    return Saving()
