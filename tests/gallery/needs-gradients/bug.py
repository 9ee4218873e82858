"""A derivative in the forward, which torch.no_grad() leaves without a graph."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract


class Net(nn.Module):
    """Adds the slope of an energy to its scores."""

    def __init__(self):
        super().__init__()
        self.energy, self.head = nn.Linear(6, 8), nn.Linear(12, 3)

    def slope(self, x):
        x = x.detach().requires_grad_()
        value = self.energy(x).square().sum()
        return torch.autograd.grad(value, x, create_graph=True)[0]

    def forward(self, x):
        slope = self.slope(x)
        return self.head(torch.cat([x, slope], 1))


@contract(inputs="B 6", targets=Labels("B", classes=3), loss=F.cross_entropy)
def net():
    return Net()
