"""A factor too many in the chain rule."""

import torch

from pytest_torchcheck import Contract

CHECKS = ('gradcheck',)


class Op(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x.exp() * y

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        return grad * x.exp() * y * y, grad * x.exp()


G = torch.Generator().manual_seed(0)
INPUTS = (torch.randn(2, 3, dtype=torch.float64, generator=G), torch.randn(2, 3, dtype=torch.float64, generator=G),)

contract = Contract(functions={"op": (Op.apply, INPUTS)}, name="op")
