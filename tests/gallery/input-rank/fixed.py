"""Grey images without a channel dimension."""

import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('backward',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(1)
        self.head = nn.Linear(64, 3)

    def forward(self, image):
        h = self.norm(image.unsqueeze(1))
        return self.head(h.flatten(1))


@contract(inputs="B 8 8", targets=Labels("B", classes=3), loss=F.cross_entropy)
def net():
    return Net()
