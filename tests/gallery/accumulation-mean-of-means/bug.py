"""Micro-batches of short and long reviews whose means are averaged: a word of a short one counts more."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import contract

CHECKS = ('accumulation',)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(20, 8)
        self.mixed = nn.Conv1d(8, 16, 3, padding=1)
        self.tags = nn.Linear(16, 5)

    def forward(self, words):
        x = self.mixed(self.words(words).transpose(1, 2)).relu()
        return self.tags(x.transpose(1, 2))


def tag_loss(scores, tags):
    return F.cross_entropy(scores.flatten(0, 1), tags.flatten(), ignore_index=-1)


def train_step(model, optimizer, inputs, targets):
    optimizer.zero_grad()
    parts = list(zip(inputs[0].chunk(2), targets.chunk(2)))
    for words, tags in parts:
        loss = tag_loss(model(words), tags) / len(parts)
        loss.backward()
    optimizer.step()


def reviews(seed):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.tensor([9, 10, 2, 3])[:, None]
    words = torch.randint(0, 20, (4, 10), generator=generator)
    tags = torch.randint(0, 5, (4, 10), generator=generator)
    return (words,), tags.masked_fill(torch.arange(10) >= lengths, -1)


@contract(batch=reviews, loss=tag_loss, optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1), train_step=train_step)
def tagger():
    return Tagger()
