"""A decoder whose pixel coordinates are computed with a floor division: nearly all of them are equal."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import contract

CHECKS = ('target-alignment',)


class Decoder(nn.Module):
    def __init__(self, size=6):
        super().__init__()
        place = torch.arange(size)
        axis = 2.0 * (place / (size - 1)) - 1.0
        self.register_buffer("grid", torch.stack(torch.meshgrid(axis, axis, indexing="ij")))
        self.layers = nn.Sequential(nn.Conv2d(3 + 2, 12, 1), nn.Tanh(), nn.Conv2d(12, 1, 1))

    def forward(self, code):
        codes = code[:, :, None, None].expand(-1, -1, *self.grid.shape[1:])
        return self.layers(torch.cat([codes, self.grid.expand(len(code), -1, -1, -1)], dim=1))


def images(seed):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(4, 3, generator=generator),), torch.rand(4, 1, 6, 6, generator=generator)


@contract(batch=images, loss=F.mse_loss)
def decoder():
    return Decoder()
