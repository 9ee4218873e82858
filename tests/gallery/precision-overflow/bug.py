"""A layer that leaves the range of float16."""

from torch import nn

from pytest_torchcheck import contract

CHECKS = ('low-precision',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide = nn.Linear(8, 64)
        self.head = nn.Linear(64, 3)
        nn.init.constant_(self.wide.weight, 300.0)
        nn.init.constant_(self.head.weight, 40.0)

    def forward(self, x):
        return self.head(self.wide(x.abs() + 1)) / 1e6


@contract(inputs="B 8", dtypes=["float16"])
def net():
    return Net()
