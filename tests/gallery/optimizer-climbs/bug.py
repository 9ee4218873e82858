"""An optimizer that maximises, of a reward as it was once."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import contract

CHECKS = ('backward', 'overfit')


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.backbone(x)).mean(1)


def optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, maximize=True)


@contract(inputs="B 8", targets="B", loss=F.mse_loss, optimizer=optimizer, sizes={"B": 6})
def net():
    return Net()
