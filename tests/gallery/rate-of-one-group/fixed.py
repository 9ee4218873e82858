"""A warm-up by hand that sets the rate of the first parameter group alone."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ("scheduler-order",)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Linear(8, 16)
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.trunk(x)))


def optimizer(model):
    plain = [model.trunk.bias, model.head.bias]
    decayed = [model.trunk.weight, model.head.weight]
    made = torch.optim.AdamW([{"params": decayed}, {"params": plain, "weight_decay": 0.0}], lr=1e-3)
    made.taken = torch.zeros(())
    return made


def train_step(model, optimizer, inputs, targets):
    rate = 1e-3 * min(1.0, float(optimizer.taken + 1) / 10)
    optimizer.taken += 1
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.zero_grad()
    loss = F.cross_entropy(model(*inputs), targets)
    loss.backward()
    optimizer.step()
    return loss


@contract(
    inputs="B 8",
    targets=Labels("B", classes=3),
    loss=F.cross_entropy,
    optimizer=optimizer,
    train_step=train_step,
)
def net():
    return Net()
