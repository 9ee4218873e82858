"""An output that lacks a dimension."""

from torch import nn

from pytest_torchcheck import contract

CHECKS = ('backward', 'output-spec')


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.backbone(x)).mean(1)


@contract(inputs="B 8", output="B 3")
def net():
    return Net()
