"""A gradient penalty whose derivative has no graph, so that nothing learns from it."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('loss-sound',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))

    def forward(self, x):
        with torch.enable_grad():
            x = x.detach().requires_grad_(True)
            logits = self.layers(x)
            slope = torch.autograd.grad(logits.square().sum(), x, retain_graph=True)[0]
        return logits, slope


def loss(outputs, targets):
    logits, slope = outputs
    return F.cross_entropy(logits, targets) + (slope.norm(dim=1) - 1).square().mean()


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=loss)
def net():
    return Net()
