"""A diffusion model that is compared with other noise than was added to its input."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import contract, promises

CHECKS = ('loss-input',)


class Diffusion(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("kept", torch.linspace(0.98, 0.02, 100))
        self.net = nn.Sequential(nn.Linear(9, 32), nn.SiLU(), nn.Linear(32, 8))

    def noisy(self, x, t, noise=None):
        if noise is None:
            noise = torch.randn_like(x)
        kept = self.kept[t][:, None]
        return kept.sqrt() * x + (1 - kept).sqrt() * noise

    def forward(self, x):
        t = torch.randint(0, 100, (len(x),))
        noise = torch.randn_like(x)
        seen = self.noisy(x, t)
        guess = self.net(torch.cat([seen, self.kept[t][:, None]], 1))
        return F.mse_loss(guess, noise)


@contract(inputs="B 8", loss="output", promises=(promises.Stochastic(reason="noise is drawn"),))
def diffusion():
    return Diffusion()
