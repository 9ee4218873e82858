"""Letters that count from 1; 0 is the blank of the CTC loss."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import contract


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.columns = nn.Conv1d(8, 24, 3, padding=1)
        self.head = nn.Linear(24, 6)

    def forward(self, image):
        columns = torch.relu(self.columns(image)).transpose(1, 2)
        return self.head(columns).log_softmax(-1)


def loss(scores, text):
    lengths = torch.full((len(text),), scores.shape[1])
    return F.ctc_loss(scores.transpose(0, 1), text, lengths, torch.full((len(text),), text.shape[1]))


def batch(seed):
    g = torch.Generator().manual_seed(seed)
    text = torch.stack([torch.randperm(5, generator=g)[:3] for _ in range(6)])
    return (torch.randn(6, 8, 12, generator=g),), text + 1


@contract(batch=batch, loss=loss)
def net():
    return Reader()
