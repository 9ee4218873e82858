"""A backbone that train() freezes, and a step before which nobody calls it."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract
from pytest_torchcheck.promises import Frozen

CHECKS = ("frozen-stays",)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Linear(8, 16)
        self.head = nn.Linear(16, 3)

    def train(self, mode=True):
        super().train(mode)
        self.backbone.requires_grad_(False)
        return self

    def forward(self, x):
        return self.head(torch.relu(self.backbone(x)))


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def step(model, optimizer, inputs, targets):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(*inputs), targets)
    loss.backward()
    optimizer.step()
    return loss.detach()


@contract(
    inputs="B 8",
    targets=Labels("B", classes=3),
    loss=F.cross_entropy,
    optimizer=sgd,
    train_step=step,
    promises=[Frozen("backbone.*", reason="pretrained")],
)
def net():
    return Net()
