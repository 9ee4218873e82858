"""A distillation loss whose distance to the teacher is taken from the student's values, and has no gradient."""

import torch
from torch import nn

from pytest_torchcheck import contract

CHECKS = ("backward", "target-ownership")


class Student(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(5, 16)
        self.code = nn.Linear(16, 4)

    def forward(self, x):
        return self.code(self.body(x).tanh())


def loss(code, teacher):
    spread = 0.01 * code.square().mean()
    distance = (code.detach() - teacher).abs().mean()
    return spread + distance


def batch(seed):
    g = torch.Generator().manual_seed(seed)
    return (torch.randn(6, 5, generator=g),), torch.randn(6, 4, generator=g)


@contract(batch=batch, inputs="B 5", loss=loss)
def net():
    return Student()
