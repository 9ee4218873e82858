"""Predictions [B, 1] against targets [B]: every sample is compared with all targets."""

import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import contract


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x):
        return self.layers(x).squeeze(1)


@contract(inputs="B 8", targets="B", loss=F.mse_loss)
def net():
    return Net()
