"""One target for all outputs of a sample, stretched to them by broadcasting."""

import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import contract

CHECKS = ('loss-shapes',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 1)

    def forward(self, x):
        return self.head(x)


@contract(inputs="B 8", targets="B 1", loss=F.mse_loss)
def net():
    return Net()
