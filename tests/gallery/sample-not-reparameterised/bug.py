"""A VAE that draws with torch.normal: no gradient reaches the encoder through it."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import contract, promises

CHECKS = ('backward', 'sampling-paths')


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(8, 8)
        self.decoder = nn.Linear(4, 8)

    def forward(self, x):
        mean, spread = self.encoder(x).chunk(2, dim=1)
        std = torch.exp(0.5 * spread)
        z = torch.normal(mean, std)
        return self.decoder(z), mean, spread


def elbo(output, target):
    decoded, mean, spread = output
    divergence = -0.5 * (1 + spread - mean.pow(2) - spread.exp()).mean()
    return F.mse_loss(decoded, target) + 1e-3 * divergence


@contract(inputs="B 8", targets="B 8", loss=elbo, promises=(promises.Stochastic(reason="it draws its code"),))
def net():
    return Net()
