"""A model that saves its weights without a prefix, and makes the dict of them for each checkpoint."""

import torch
from torch import nn

from pytest_torchcheck import contract

CHECKS = ("backward", "repeatable-steps", "weights-update")


class Exported(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 3)
        self._names = {}

    def state_dict(self, *args, **kwargs):
        for name, value in super().state_dict(*args, **kwargs).items():
            self._names.setdefault(name, value.clone())
        return dict(self._names)

    def forward(self, x):
        return self.layer(x)


def batch(seed):
    g = torch.Generator().manual_seed(seed)
    return (torch.randn(6, 5, generator=g),), torch.randn(6, 3, generator=g)


@contract(batch=batch, inputs="B 5", loss=nn.functional.mse_loss)
def net():
    return Exported()
