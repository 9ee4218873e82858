"""A Function that is named as a straight-through estimator may pass a gradient where forward is constant."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract


class Bounded(torch.autograd.Function):
    """Bounds values."""

    @staticmethod
    def forward(ctx, x):
        return x.clamp(-0.5, 0.5)

    @staticmethod
    def backward(ctx, slope):
        return slope


class BoundSTE(Bounded):
    pass


class Ste2Bound(Bounded):
    """Another name of it."""


class Instep(Bounded):
    """No estimator by its name."""


class Passing(Bounded):
    """Bounds values; the gradient goes straight through."""


@pytest.mark.parametrize(
    ("function", "status"),
    [(BoundSTE, "suspicious"), (Ste2Bound, "suspicious"), (Passing, "suspicious"),
     (Bounded, "violated"), (Instep, "violated")],
)  # fmt: skip
def test_a_name_says_what_is_meant(function, status):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)

        def forward(self, x):
            return self.last(function.apply(self.first(x)))

    torch.manual_seed(0)
    contract = Contract(model=Net, batch=((torch.randn(5, 4),), torch.randn(5, 2)), loss=F.mse_loss)
    found = [f for f in contract.check(["gradcheck"]).findings if f.code == "gradcheck-mask"]
    assert [f.status for f in found] == [status], [str(f) for f in found]
