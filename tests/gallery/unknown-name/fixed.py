"""A promise that names a parameter that the model does not have."""

import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, Tokens, contract, promises

CHECKS = ('backward', 'tied-weights')


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(12, 16)
        self.head = nn.Linear(16, 12, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids):
        return self.head(self.tokens(ids).mean(1))


TIED = promises.Tied("tokens.weight", "head.weight")


@contract(inputs=Tokens("B T", vocab=12), targets=Labels("B", classes=12), loss=F.cross_entropy, promises=(TIED,))
def net():
    return Net()
