"""A backward that returns too few gradients."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('backward',)


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x)
        ctx.scale = scale
        return scale * x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * ctx.scale * x * grad


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return Square.apply(self.head(x), 0.5)


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=F.cross_entropy)
def net():
    return Net()
