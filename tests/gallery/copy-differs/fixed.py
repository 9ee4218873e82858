"""A copy that is built anew, with other weights."""

import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('copy-and-pickle',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.head = nn.Linear(16, 3)

    def __deepcopy__(self, memo):
        made = Net()
        made.load_state_dict(self.state_dict())
        return made

    def forward(self, x):
        return self.head(self.backbone(x))


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=F.cross_entropy)
def net():
    return Net()
