"""Scores of items by the best cosine with any of a user's interests, which are normalised over the interests."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, Tokens, contract

CHECKS = ('loss-input',)


class Interests(nn.Module):
    def __init__(self):
        super().__init__()
        self.items = nn.Embedding(20, 8)
        self.interests = nn.Linear(8, 4 * 8)

    def forward(self, history):
        seen = self.items(history).mean(1)
        interests = F.normalize(self.interests(seen).unflatten(1, (4, 8)), dim=-1)
        items = F.normalize(self.items.weight, dim=-1)
        return 5 * torch.einsum('bkd,nd->bkn', interests, items).amax(1)


@contract(inputs=Tokens("B T", vocab=20), targets=Labels("B", classes=20), sizes={"B": 6, "T": 5}, loss=F.cross_entropy)
def interests():
    return Interests()
