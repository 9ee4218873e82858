"""A bias whose gradient is not summed over the batch."""

import torch

from pytest_torchcheck import Contract

CHECKS = ('gradcheck',)


class Op(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, bias):
        return x + bias

    @staticmethod
    def backward(ctx, grad):
        return grad, grad.sum(0)


G = torch.Generator().manual_seed(0)
X = torch.randn(3, 4, dtype=torch.float64, generator=G)
Y = torch.randn(3, 4, dtype=torch.float64, generator=G)
BIAS = torch.randn(4, dtype=torch.float64, generator=G)

contract = Contract(functions={"op": (Op.apply, (X, BIAS))}, name="op")
