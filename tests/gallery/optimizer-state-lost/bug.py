"""A step that lowers the learning rate by loading parameter groups, and with them no moments."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import contract

CHECKS = ("resume",)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(6, 12), nn.Linear(12, 2)
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        return self.head(torch.tanh(self.body(x)))


def lower(optimizer, factor):
    groups = optimizer.state_dict()["param_groups"]
    for group in groups:
        group["lr"] *= factor
    optimizer.load_state_dict({"state": {}, "param_groups": groups})


def step(model, optimizer, inputs, targets):
    optimizer.zero_grad()
    loss = F.mse_loss(model(*inputs), targets)
    loss.backward()
    optimizer.step()
    model.seen += 1
    if model.seen % 2 == 0:
        lower(optimizer, 0.5)
    return loss.detach()


@contract(
    inputs="B 6",
    targets="B 2",
    optimizer=lambda model: torch.optim.Adam(model.parameters(), lr=1e-3),
    train_step=step,
)
def net():
    return Net()
