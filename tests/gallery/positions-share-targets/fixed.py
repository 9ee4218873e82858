"""A tagger whose log_softmax runs over the positions of a sentence in place of its tags."""

import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, Tokens, contract

CHECKS = ("target-alignment", "target-ownership")


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(30, 12), nn.Linear(12, 4)

    def forward(self, ids):
        return self.head(self.words(ids))


def tagging_loss(scores, tags):
    logs = F.log_softmax(scores, dim=-1)
    return F.nll_loss(logs.transpose(1, 2), tags)


@contract(inputs=Tokens("B T", vocab=30), targets=Labels("B T", classes=4), sizes={"T": 7}, loss=tagging_loss)
def net():
    return Tagger()
