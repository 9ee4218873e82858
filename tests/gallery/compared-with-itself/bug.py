"""A distillation whose term compares the teacher with the teacher."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('loss-input',)


class Pair(nn.Module):
    """A student beside its frozen teacher."""

    def __init__(self):
        super().__init__()
        self.student = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        self.teacher = nn.Linear(8, 4).requires_grad_(False)

    def forward(self, x):
        with torch.no_grad():
            taught = self.teacher(x)
        return self.student(x), taught


def loss(outputs, labels):
    output, taught = outputs
    soft = taught.softmax(-1)
    distilled = F.kl_div(taught.log_softmax(-1), soft, reduction="batchmean")
    return distilled + F.cross_entropy(output, labels)


@contract(inputs="B 8", targets=Labels("B", classes=4), loss=loss, sizes={"B": (2, 8)})
def net():
    return Pair()
