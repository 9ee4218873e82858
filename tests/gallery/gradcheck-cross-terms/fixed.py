"""A softmax whose backward keeps the diagonal only."""

import torch

from pytest_torchcheck import Contract

CHECKS = ('gradcheck',)


class Op(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.softmax(-1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return y * (grad - (grad * y).sum(-1, keepdim=True))


G = torch.Generator().manual_seed(0)
INPUTS = (torch.randn(3, 5, dtype=torch.float64, generator=G),)

contract = Contract(functions={"op": (Op.apply, INPUTS)}, name="op")
