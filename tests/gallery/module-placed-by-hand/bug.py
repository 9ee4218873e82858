"""A frozen helper network that the model does not move."""

import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('device-portability',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.helper = [nn.Linear(8, 8).requires_grad_(False)]
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(x + self.helper[0](x))


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=F.cross_entropy)
def net():
    return Net()
