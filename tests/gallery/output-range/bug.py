"""A probability without a sigmoid."""

from torch import nn

from pytest_torchcheck import contract

CHECKS = ('backward', 'output-spec')


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x):
        return self.layers(x).squeeze(1)


@contract(inputs="B 8", output="B", output_range=(0.0, 1.0))
def net():
    return Net()
