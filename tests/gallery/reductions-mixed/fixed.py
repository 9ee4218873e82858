"""A variational autoencoder that averages both its error and its divergence over the batch."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import contract

CHECKS = ("backward", "loss-weights", "target-ownership")


class Variational(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Linear(12, 8)
        self.decode = nn.Linear(4, 12)

    def forward(self, x):
        mean, log_var = self.encode(x).chunk(2, dim=-1)
        return self.decode(mean), mean, log_var


def loss(output, x):
    decoded, mean, log_var = output
    error = F.mse_loss(decoded, x)
    divergence = -0.5 * (1 + log_var - mean**2 - log_var.exp()).sum(1).mean()
    return error + 0.01 * divergence


def batch(seed):
    x = torch.randn(6, 12, generator=torch.Generator().manual_seed(seed))
    return (x,), x.clone()


@contract(batch=batch, inputs="B 12", sizes={"B": (2, 8)}, loss=loss)
def net():
    return Variational()
