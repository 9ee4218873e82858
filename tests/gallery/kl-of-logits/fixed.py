"""Distillation with the log-probabilities of the student."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import contract


class Student(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))

    def forward(self, x):
        return self.layers(x)


def distillation(logits, teacher):
    return F.kl_div((logits / 2.0).log_softmax(dim=1), teacher, reduction="batchmean")


def batch(seed):
    g = torch.Generator().manual_seed(seed)
    return (torch.randn(12, 8, generator=g),), torch.randn(12, 4, generator=g).softmax(dim=1)


@contract(batch=batch, loss=distillation)
def net():
    return Student()
