"""A model that rounds its code to entries of a table, with a straight-through estimator."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import contract

CHECKS = ("backward", "descent")


class Coded(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode, self.decode = nn.Linear(6, 3), nn.Linear(3, 6)
        self.table = nn.Embedding(16, 3)

    def forward(self, x):
        z = self.encode(x)
        near = self.table(torch.cdist(z, self.table.weight).argmin(1))
        coded = z + (near - z).detach()
        return self.decode(coded), F.mse_loss(near, z.detach()) + 0.3 * F.mse_loss(z, near.detach())


def loss(output, x):
    made, apart = output
    return F.mse_loss(made, x) + apart


@contract(inputs="B 6", targets="B 6", loss=loss)
def coded():
    return Coded()
