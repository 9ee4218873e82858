"""A refactored forward that gives other numbers with a released checkpoint."""

import torch
from torch import nn

from pytest_torchcheck import contract, promises

CHECKS = ('old-checkpoints',)


def released():
    return {
        "mix.weight": torch.linspace(-1, 1, 32).reshape(8, 4),
        "mix.bias": torch.linspace(0, 1, 8),
        "head.weight": torch.linspace(1, -1, 24).reshape(3, 8),
        "head.bias": torch.zeros(3),
    }


GIVEN = torch.linspace(-1, 1, 8).reshape(2, 4)
GAVE = torch.tensor(
    [[2.6917219, 0.9680488, -0.7556241], [-0.082209, -1.1993408, -2.316473]]
)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(4, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.mix(x)))


@contract(inputs="B 4", promises=(promises.Loads(released, GAVE, inputs=GIVEN),))
def net():
    return Net()
