"""A variational autoencoder that scales its noise by the deviation."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import contract


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode, self.decode = nn.Linear(16, 2 * 4), nn.Linear(4, 16)

    def forward(self, x):
        mean, log_var = self.encode(x).chunk(2, dim=1)
        noise = torch.randn_like(mean) if self.training else torch.zeros_like(mean)
        z = mean + noise * (0.5 * log_var).exp()
        return self.decode(z), mean, log_var


def loss(output, target):
    rebuilt, mean, log_var = output
    divergence = 0.5 * (log_var.exp() + mean**2 - 1 - log_var).sum(1).mean()
    return F.mse_loss(rebuilt, target, reduction="sum") / len(target) + divergence


@contract(inputs="B 16", targets="B 16", loss=loss)
def autoencoder():
    return Autoencoder()
