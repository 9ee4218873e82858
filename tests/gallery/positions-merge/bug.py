"""Sinusoidal positions that are counted in bfloat16: beyond 256 two neighbours share one."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, Tokens, contract

CHECKS = ('gradients-finite',)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.head = nn.Embedding(20, 16), nn.Linear(16, 3)

    def forward(self, ids):
        positions = torch.arange(ids.shape[1], dtype=torch.bfloat16)
        rates = 100.0 ** (-torch.arange(16) / 16)
        return self.head(self.tokens(ids) + (positions[:, None] * rates).sin().float())


def loss(scores, tags):
    return F.cross_entropy(scores.flatten(0, 1), tags.flatten())


@contract(inputs=Tokens("B T", vocab=20), targets=Labels("B T", classes=3), sizes={"B": 4, "T": (8, 512)}, loss=loss)
def tagger():
    return Tagger()
