"""A preview with a generator of its own."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import contract

CHECKS = ('evaluation-leaves-trace',)


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))

    def forward(self, noisy):
        return self.net(noisy)


def optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


@torch.no_grad()
def preview(model):
    generator = torch.Generator().manual_seed(0)
    return model(torch.randn(4, 8, generator=generator))


def train_step(model, optimizer, inputs, targets):
    optimizer.zero_grad()
    (clean,) = inputs
    noise = torch.randn_like(clean)
    loss = F.mse_loss(model(clean + noise), noise)
    loss.backward()
    optimizer.step()
    preview(model)
    return loss.detach()


@contract(inputs="B 8", train_step=train_step, optimizer=optimizer, sizes={"B": 6})
def net():
    return Denoiser()
