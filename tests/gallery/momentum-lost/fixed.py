"""An optimizer whose velocity lasts from step to step."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import contract

CHECKS = ("weights-update", "resume")


class HeavyBall(torch.optim.Optimizer):
    def __init__(self, params, lr=0.05, momentum=0.8):
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if "velocity" not in state:
                    state["velocity"] = torch.zeros_like(p)
                state["velocity"].mul_(group["momentum"]).add_(p.grad)
                p.sub_(group["lr"] * state["velocity"])


@contract(
    inputs="B 6",
    targets="B 2",
    loss=F.mse_loss,
    optimizer=lambda model: HeavyBall(model.parameters()),
)
def net():
    return nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 2))
