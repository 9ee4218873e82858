"""A recogniser with one convolution of stride 2, whose lengths are halved with it."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import contract

CHECKS = ("label-range",)


class Recogniser(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(5, 12, 3, stride=2, padding=1)
        self.head = nn.Linear(12, 6)

    def halved(self, lengths):
        return (lengths + 1) // 2

    def forward(self, sound, lengths):
        x = self.conv(sound.transpose(1, 2)).relu().transpose(1, 2)
        lengths = self.halved(lengths)
        return self.head(x).log_softmax(-1), lengths


def loss(output, targets):
    scores, lengths = output
    words, counts = targets
    return F.ctc_loss(scores.transpose(0, 1), words, lengths, counts)


def batch(seed):
    g = torch.Generator().manual_seed(seed)
    lengths = torch.tensor([24, 18, 21, 24])
    words = torch.randint(1, 6, (4, 3), generator=g)
    return (torch.randn(4, 24, 5, generator=g), lengths), (words, torch.tensor([3, 2, 3, 1]))


@contract(batch=batch, loss=loss)
def recogniser():
    return Recogniser()
