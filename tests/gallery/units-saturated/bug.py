"""Raw pixels drive the first tanh to its bounds."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import contract

CHECKS = ('backward', 'dead-units')


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(64, 32)
        self.head = nn.Linear(32, 4)

    def forward(self, image):
        return self.head(torch.tanh(self.hidden(image.flatten(1))))


def batch(seed):
    draw = torch.Generator().manual_seed(seed)
    image = torch.randint(0, 256, (8, 1, 8, 8), generator=draw).float()
    return (image,), torch.arange(8) % 4


@contract(batch=batch, loss=F.cross_entropy)
def net():
    return Net()
