"""A backward that fails where only one input wants a gradient."""

import torch

from pytest_torchcheck import Contract

CHECKS = ('gradcheck',)


class Op(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors; return grad * y, grad * x


G = torch.Generator().manual_seed(0)
X = torch.randn(3, 4, dtype=torch.float64, generator=G)
Y = torch.randn(3, 4, dtype=torch.float64, generator=G)

contract = Contract(functions={"op": (Op.apply, (X, Y))}, name="op")
