"""A momentum that weighs the new batch, as torch takes it."""

import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ("backward", "mode-agreement")


@contract(inputs="B 8", targets=Labels("B", classes=3), sizes={"B": 12}, loss=F.cross_entropy)
def net():
    return nn.Sequential(
        nn.Linear(8, 16),
        nn.BatchNorm1d(16, momentum=0.01),
        nn.ReLU(),
        nn.Linear(16, 3),
    )
