"""Labels that the model guesses for itself: a loss kept from an experiment with pseudo-labels."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import contract

CHECKS = ("backward", "target-alignment", "target-ownership")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(9, 16)
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        return self.head(torch.tanh(self.hidden(x)))


def loss(logits, labels):
    guessed = logits.argmax(1)
    return F.cross_entropy(logits, guessed)


def batch(seed):
    g = torch.Generator().manual_seed(seed)
    return (torch.randn(6, 9, generator=g),), torch.randint(0, 4, (6,), generator=g)


@contract(batch=batch, loss=loss)
def net():
    return Net()
