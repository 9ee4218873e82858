"""A covariance of fewer points than dimensions has no Cholesky factor."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('backward',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.points = nn.Linear(8, 18)
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        points = self.points(x).view(-1, 3, 6)
        covariance = points.mT @ points
        factor = torch.linalg.cholesky(covariance)
        return self.head(factor.diagonal(dim1=1, dim2=2).log())


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=F.cross_entropy)
def net():
    return Net()
