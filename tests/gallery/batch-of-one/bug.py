"""A squeeze without a dimension: a batch of one loses it."""

import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import contract

CHECKS = ('backward', 'batch-sizes')


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x):
        return self.layers(x).squeeze()


@contract(inputs="B 8", targets="B", loss=F.mse_loss, sizes={"B": (1, 6)})
def net():
    return Net()
