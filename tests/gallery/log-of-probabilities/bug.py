"""A logarithm of probabilities, which is infinite where one of them underflows."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('loss-input',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.backbone(x))


def loss(output, targets):
    probabilities = output.softmax(dim=1)
    return -torch.log(probabilities).gather(1, targets[:, None]).mean()


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=loss)
def net():
    return Net()
