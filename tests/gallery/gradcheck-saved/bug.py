"""A backward that reads the input where the output is needed."""

import torch

from pytest_torchcheck import Contract

CHECKS = ('gradcheck',)


class Op(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(x)
        return y

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return grad * y


G = torch.Generator().manual_seed(0)
INPUTS = (torch.randn(2, 3, dtype=torch.float64, generator=G),)

contract = Contract(functions={"op": (Op.apply, INPUTS)}, name="op")
