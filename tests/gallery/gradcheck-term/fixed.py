"""A residual that backward forgets."""

import torch

from pytest_torchcheck import Contract

CHECKS = ('gradcheck',)


class Op(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x + x.sin()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad + grad * x.cos()


G = torch.Generator().manual_seed(0)
INPUTS = (torch.randn(2, 3, dtype=torch.float64, generator=G),)

contract = Contract(functions={"op": (Op.apply, INPUTS)}, name="op")
