"""A new head is put in before everything is frozen."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('backward', 'gradients-exist', 'resume', 'weights-update')


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        return self.head(self.backbone(x))


@contract(
    inputs="B 8",
    targets=Labels("B", classes=3),
    loss=F.cross_entropy,
    optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
)
def net():
    model = Net()
    model.head = nn.Linear(16, 3)
    for parameter in model.parameters():
        parameter.requires_grad = False
    return model
