"""A backward that ignores its second output."""

import torch

from pytest_torchcheck import Contract

CHECKS = ('gradcheck',)


class Op(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin(), x.cos()

    @staticmethod
    def backward(ctx, first, second):
        (x,) = ctx.saved_tensors
        return first * x.cos()


G = torch.Generator().manual_seed(0)
INPUTS = (torch.randn(2, 3, dtype=torch.float64, generator=G),)

contract = Contract(functions={"op": (Op.apply, INPUTS)}, name="op")
