"""A residual block of an autoencoder whose first activation works in place: the skip carries the rectified input."""

import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Floats, contract

CHECKS = ('inputs-unchanged',)


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.ReLU(),
            nn.Conv2d(8, 4, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(4, 8, 1),
        )

    def forward(self, x):
        return x + self.layers(x)


@contract(inputs="B 1 8 8", targets=Floats("B 1 8 8"), sizes={"B": 4}, loss=F.mse_loss)
def autoencoder():
    return nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), Residual(), Residual(), nn.Conv2d(8, 1, 3, padding=1))
