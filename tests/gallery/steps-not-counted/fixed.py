"""An optimizer that corrects the bias of its moving average by the number of its steps, and keeps it."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import contract

CHECKS = ("weights-update",)


class Averaged(torch.optim.Optimizer):
    def __init__(self, params, lr=0.05, beta=0.9):
        super().__init__(params, {"lr": lr, "beta": beta})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["step"], state["mean"] = 0, torch.zeros_like(p)
                step = state["step"]
                state["step"] = step = step + 1
                state["mean"].lerp_(p.grad, 1 - group["beta"])
                p.sub_(group["lr"] * state["mean"] / (1 - group["beta"] ** step))


@contract(
    inputs="B 6",
    targets="B 2",
    loss=F.mse_loss,
    optimizer=lambda model: Averaged(model.parameters()),
)
def net():
    return nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 2))
