"""A frozen backbone whose BatchNorm still updates its statistics."""

import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract, promises


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU())
        self.head = nn.Linear(16, 3)
        self.backbone.requires_grad_(False)

    def train(self, mode=True):
        super().train(mode)
        self.backbone.eval()
        return self

    def forward(self, x):
        return self.head(self.backbone(x))


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=F.cross_entropy, promises=(promises.Frozen("backbone.*", reason="pretrained"),))
def net():
    return Net()
