"""A backward that changes what it has kept."""

import torch

from pytest_torchcheck import Contract

CHECKS = ('gradcheck',)


class Op(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.calls = 0
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        ctx.calls = 1
        return 2 * grad * x * ctx.calls


X = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

contract = Contract(functions={"op": (Op.apply, (X,))}, name="op")
