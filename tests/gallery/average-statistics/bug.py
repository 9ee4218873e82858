"""A segmentation net that answers with its moving average, whose batch normalisation nobody updates."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ("averages-follow",)


class Averaged(nn.Module):
    def __init__(self):
        super().__init__()
        norm = nn.BatchNorm2d(6)
        self.online = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), norm, nn.ReLU(), nn.Conv2d(6, 3, 1))
        self.shadow = copy.deepcopy(self.online).requires_grad_(False)

    def forward(self, x):
        return self.online(x) if self.training else self.shadow(x)

    @torch.no_grad()
    def update(self, decay=0.99):
        online = dict(self.online.named_parameters())
        for name, average in self.shadow.named_parameters():
            average.lerp_(online[name], 1 - decay)


def step(model, optimizer, inputs, targets):
    model.train()
    optimizer.zero_grad()
    loss = F.cross_entropy(model(*inputs), targets)
    loss.backward()
    optimizer.step()
    model.update()
    return loss.detach()


@contract(
    inputs="B 1 H W",
    targets=Labels("B H W", classes=3),
    sizes={"H": 6, "W": 6},
    optimizer=lambda model: torch.optim.Adam(model.online.parameters(), lr=1e-3),
    train_step=step,
)
def net():
    return Averaged()
