"""A vector-quantised autoencoder whose decoder reads the codes as they are."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import contract

CHECKS = ("backward", "sampling-paths")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 4))
        self.codes = nn.Embedding(6, 4)
        self.decoder = nn.Sequential(nn.Linear(4, 16), nn.SiLU(), nn.Linear(16, 8))

    def forward(self, x):
        z = self.encoder(x)
        code = self.codes(torch.cdist(z, self.codes.weight).argmin(-1))
        quantised = z + (code - z).detach()
        return self.decoder(quantised), z, code


def loss(output, target):
    made, z, code = output
    return F.mse_loss(made, target) + F.mse_loss(code, z.detach()) + 0.25 * F.mse_loss(z, code.detach())


@contract(inputs="B 8", targets="B 8", loss=loss)
def net():
    return Net()
