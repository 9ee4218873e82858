"""A checkpoint that was saved from a DataParallel wrapper."""

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
    saved = {f"module.{key}": value for key, value in Net().state_dict().items()}
    model.load_state_dict({key.removeprefix("module."): value for key, value in saved.items()})
    return model


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=F.cross_entropy)
def net():
    return pretrained()
