"""A model whose own check refuses short sequences that the contract allows."""

import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('batch-sizes',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        if x.shape[1] < 3:
            raise ValueError(f"sequences of {x.shape[1]} are too short")
        return self.head(x.mean(1))


@contract(inputs="B T 8", targets=Labels("B", classes=3), loss=F.cross_entropy, sizes={"B": (2, 6), "T": (1, 12)})
def net():
    return Net()
