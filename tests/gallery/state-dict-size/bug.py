"""A checkpoint of a model with another number of classes."""

import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('backward',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.backbone(x))


def pretrained():
    model = Net()
    saved = Net()
    saved.head = nn.Linear(16, 10)
    state = saved.state_dict()
    model.load_state_dict(state)
    return model


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=F.cross_entropy)
def net():
    return pretrained()
