"""A second input that is declared and never used."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('backward', 'input-influence')


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.image = nn.Linear(8, 16)
        self.text = nn.Linear(4, 16)
        self.head = nn.Linear(16, 3)

    def forward(self, image, text):
        h = torch.relu(self.image(image))
        h = h + torch.relu(self.text(torch.zeros_like(text)))
        return self.head(h)


@contract(inputs=("B 8", "B 4"), targets=Labels("B", classes=3), loss=F.cross_entropy)
def net():
    return Net()
