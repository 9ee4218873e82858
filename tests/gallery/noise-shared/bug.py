"""A variational autoencoder that draws one noise vector for the whole batch."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import contract

CHECKS = ('seeding',)


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(12, 2 * 9), nn.Linear(9, 12)

    def forward(self, x):
        mean, log_scale = self.encoder(x).chunk(2, dim=-1)
        noise = torch.randn(mean.shape[1:], device=x.device)
        latent = mean + log_scale.exp() * noise
        return self.decoder(latent)


def batch(seed):
    x = torch.randn(6, 12, generator=torch.Generator().manual_seed(seed))
    return (x,), x


@contract(batch=batch, loss=F.mse_loss)
def autoencoder():
    return Autoencoder()
