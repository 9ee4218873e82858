"""A lookup whose backward overwrites the rows that occur twice."""

import torch

from pytest_torchcheck import Contract

CHECKS = ('gradcheck',)


class Op(torch.autograd.Function):
    @staticmethod
    def forward(ctx, table, ids):
        ctx.save_for_backward(ids)
        ctx.rows = table.shape[0]
        return table[ids]

    @staticmethod
    def backward(ctx, grad):
        (ids,) = ctx.saved_tensors
        made = grad.new_zeros(ctx.rows, grad.shape[1])
        made[ids] = grad
        return made, None


G = torch.Generator().manual_seed(0)
INPUTS = (torch.randn(6, 3, dtype=torch.float64, generator=G), torch.tensor([0, 2, 2, 5]),)

contract = Contract(functions={"op": (Op.apply, INPUTS)}, name="op")
