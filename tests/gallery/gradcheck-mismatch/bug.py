"""A sigmoid whose gradient lacks one factor."""

import torch

from pytest_torchcheck import Contract

CHECKS = ('gradcheck',)


class Op(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.sigmoid(x)

    @staticmethod
    def backward(ctx, grad):
        s = torch.sigmoid(ctx.saved_tensors[0]); return grad * s


G = torch.Generator().manual_seed(0)
X = torch.randn(3, 4, dtype=torch.float64, generator=G)
Y = torch.randn(3, 4, dtype=torch.float64, generator=G)

contract = Contract(functions={"op": (Op.apply, (X,))}, name="op")
