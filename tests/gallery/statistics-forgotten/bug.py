"""A momentum of batch normalisation that was copied from another framework, where it weighs the old statistics."""

import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ("backward", "mode-agreement")


@contract(inputs="B 8", targets=Labels("B", classes=3), sizes={"B": 12}, loss=F.cross_entropy)
def net():
    return nn.Sequential(
        nn.Linear(8, 16),
        nn.BatchNorm1d(16, momentum=0.99),
        nn.ReLU(),
        nn.Linear(16, 3),
    )
