"""Micro-batches whose gradients are summed, not averaged."""

import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract, promises

CHECKS = ('accumulation',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.backbone(x))


def micro_step(model, inputs, targets):
    loss = F.cross_entropy(model(*inputs), targets)
    loss.backward()
    return loss.detach()


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=F.cross_entropy, sizes={"B": 8}, promises=(promises.Accumulates(2, micro_step=micro_step),))
def net():
    return Net()
