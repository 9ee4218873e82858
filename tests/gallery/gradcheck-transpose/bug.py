"""A product whose gradient is transposed."""

import torch

from pytest_torchcheck import Contract

CHECKS = ('gradcheck',)


class Op(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors; return grad @ w.T, (grad.T @ x)


G = torch.Generator().manual_seed(0)
X = torch.randn(3, 4, dtype=torch.float64, generator=G)
Y = torch.randn(3, 4, dtype=torch.float64, generator=G)
W = torch.randn(4, 4, dtype=torch.float64, generator=G)

contract = Contract(functions={"op": (Op.apply, (X, W))}, name="op")
