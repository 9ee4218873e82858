"""A loss that rewards distance: its sign is wrong."""

import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import contract


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))

    def forward(self, x):
        return self.layers(x)


def loss(output, target):
    return F.cosine_similarity(output, target).mean()


@contract(inputs="B 8", targets="B 4", loss=loss)
def net():
    return Net()
