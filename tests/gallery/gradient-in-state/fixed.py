"""An optimizer whose previous gradient is the gradient itself, which zero_grad and backward write to."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import contract

CHECKS = ("weights-update", "backward")


class Damped(torch.optim.Optimizer):
    def __init__(self, params, lr=0.05):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                change = state.get("previous", torch.zeros_like(p)) - p.grad
                state["previous"] = p.grad.clone()
                p.sub_(group["lr"] * p.grad * torch.sigmoid(change.abs()))


def train_step(model, optimizer, inputs, targets):
    optimizer.zero_grad(set_to_none=False)
    loss = F.mse_loss(model(*inputs), targets)
    loss.backward()
    optimizer.step()
    return loss


@contract(
    inputs="B 6",
    targets="B 2",
    loss=F.mse_loss,
    train_step=train_step,
    optimizer=lambda model: Damped(model.parameters()),
)
def net():
    return nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 2))
