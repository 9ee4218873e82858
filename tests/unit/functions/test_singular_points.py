"""A forward with another value at one point alone does not move in steps: its backward is no estimator."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import Function

from pytest_torchcheck import Contract


def power_mean(sign):
    class PowerMean(Function):
        """The mean of a power, to one over that power: 1 where the power is 0, and elsewhere smooth."""

        @staticmethod
        def forward(ctx, x, p):
            mean = (x**p).mean()
            ctx.save_for_backward(x, p, mean)
            return mean ** (1 / p)

        @staticmethod
        def backward(ctx, g):
            x, p, mean = ctx.saved_tensors
            out = mean ** (1 / p)
            by_x = g * out / mean * x ** (p - 1) / x.numel()
            inner = (x**p * x.log()).mean() / (p * mean)
            return by_x, g * out * (inner + sign * mean.log() / p**2)

    return PowerMean


@pytest.mark.parametrize("sign", [-1, 1])
def test_a_wrong_sign_in_a_mean_of_powers(sign):
    x = torch.linspace(0.2, 1.7, 6, dtype=torch.float64, requires_grad=True)
    p = torch.tensor(2.5, dtype=torch.float64, requires_grad=True)
    report = Contract(functions={"mean": (power_mean(sign).apply, (x, p))}).check(["gradcheck"])
    told = [f.code.startswith("gradcheck-") for f in report.causes]
    assert told == ([True] if sign > 0 else [])
