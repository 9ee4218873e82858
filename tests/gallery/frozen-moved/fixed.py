"""A backbone that is declared frozen, but decays: the optimizer holds it."""

import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract, promises


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.backbone(x))


def frozen_net():
    model = Net()
    model.backbone.requires_grad_(False)
    return model


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=F.cross_entropy, promises=(promises.Frozen("backbone.*", reason="pretrained"),))
def net():
    return frozen_net()
