"""A classifier on a pretrained encoder, whose checkpoint comes from a wrapper and is loaded without strictness."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('state-dict-roundtrip',)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.ReLU())

    def forward(self, x):
        return self.layers(x)


def checkpoint():
    return {f'module.{name}': torch.ones_like(value) for name, value in Encoder().state_dict().items()}


@contract(inputs="B 6", targets=Labels("B", classes=3), sizes={"B": 4}, loss=F.cross_entropy)
def classifier():
    encoder = Encoder()
    encoder.load_state_dict(checkpoint(), strict=False)
    return nn.Sequential(encoder, nn.Linear(16, 3))
