"""A model whose output is the same at every position."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import contract

CHECKS = ('backward', 'overfit')


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("positions", torch.randn(1, 12, 8, generator=torch.Generator().manual_seed(1)))
        self.body = nn.Linear(8, 32)
        self.head = nn.Linear(32, 2)

    def forward(self, x):
        h = x.unsqueeze(1).expand(-1, 6, -1) + self.positions[:, 6]
        return self.head(torch.relu(self.body(h)))


@contract(inputs="B 8", targets="B 6 2", loss=F.mse_loss, sizes={"B": 3})
def net():
    return Net()
