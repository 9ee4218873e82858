"""A checkpoint that holds a NumPy scalar, which torch.load refuses."""

import io

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('backward',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.backbone(x))


def optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def train_step(model, optimizer, inputs, targets):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(*inputs), targets)
    loss.backward()
    optimizer.step()
    mean = np.mean([loss.item()])
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "mean": mean}, file)
    file.seek(0)
    model.load_state_dict(torch.load(file)["model"])
    return loss.detach()


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=F.cross_entropy, sizes={"B": 6}, train_step=train_step, optimizer=optimizer)
def net():
    return Net()
