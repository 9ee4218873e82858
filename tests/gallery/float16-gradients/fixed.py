"""The weights stay float32 and autocast computes in float16."""

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

    @torch.autocast("cpu", dtype=torch.float16)
    def forward(self, x):
        return self.head(self.backbone(x))


SCALER = torch.amp.GradScaler("cpu", init_scale=1024.0)


def optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def train_step(model, optimizer, inputs, targets):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(*inputs).float(), targets)
    SCALER.scale(loss).backward()
    SCALER.unscale_(optimizer)
    SCALER.step(optimizer)
    SCALER.update()
    return loss.detach()


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=F.cross_entropy, sizes={"B": 6}, train_step=train_step, optimizer=optimizer)
def net():
    return Net()
