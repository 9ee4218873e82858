"""A module that keeps its last output, and a copy of it as a teacher."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('backward',)


class Student(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 3)
        self.warm = self.head(torch.ones(1, 8))

    def forward(self, x):
        return self.head(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.student = Student()
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)

    def forward(self, x):
        return self.student(x) + self.teacher(x).detach()


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=F.cross_entropy)
def net():
    return Net()
