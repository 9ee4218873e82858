"""Two views of each sample, ranked among candidates that include the sample itself."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import contract

CHECKS = ('backward', 'in-batch-pairs')


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16))

    def forward(self, a, b):
        return F.normalize(self.body(torch.cat([a, b])), dim=-1)


def loss(output, targets):
    size = len(output) // 2
    logits = output @ output.t() / 0.2
    labels = torch.arange(len(output)).roll(size)
    return F.cross_entropy(logits, labels)


def batch(seed):
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(8, 8, generator=draw)
    return (x, x + 0.1 * torch.randn(8, 8, generator=draw)), None


@contract(batch=batch, loss=loss)
def net():
    return Net()
