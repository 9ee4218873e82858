"""An optimizer that adds a term of its own to each gradient, and clears the gradients of matrices on the way."""

import torch
from torch import nn

from pytest_torchcheck import contract

CHECKS = ("backward", "weights-update")


class Centred(torch.optim.AdamW):
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None and p.grad.dim() > 1:
                    p.grad = p.grad - p.grad.mean(1, keepdim=True)
        return super().step(closure)


def batch(seed):
    g = torch.Generator().manual_seed(seed)
    return (torch.randn(6, 5, generator=g),), torch.randn(6, 3, generator=g)


@contract(
    batch=batch,
    inputs="B 5",
    loss=nn.functional.mse_loss,
    optimizer=lambda model: Centred(model.parameters(), lr=1e-2, weight_decay=0.1),
)
def net():
    return nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 3))
