"""A gradient that is always zero."""

import torch

from pytest_torchcheck import Contract

CHECKS = ('gradcheck',)


class Op(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.sin(x)

    @staticmethod
    def backward(ctx, grad):
        return grad * torch.cos(ctx.saved_tensors[0])


G = torch.Generator().manual_seed(0)
X = torch.randn(3, 4, dtype=torch.float64, generator=G)
Y = torch.randn(3, 4, dtype=torch.float64, generator=G)

contract = Contract(functions={"op": (Op.apply, (X,))}, name="op")
