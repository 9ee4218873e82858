"""Integers that low precision takes for one another; and models to which the dtype of integers makes no difference."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, Ints, TensorSpec


class Model(nn.Module):
    """Reads an integer of each sample; subclasses say how."""

    def __init__(self):
        super().__init__()
        self.enter, self.leave = nn.Linear(4, 16), nn.Linear(16, 3)
        self.table, self.lift = nn.Embedding(1000, 16), nn.Linear(2, 16)

    def forward(self, x, number):
        return self.leave(torch.tanh(self.enter(x) + self.read(x, number)))


class CastFirst(Model):
    def read(self, x, number):
        angle = number.to(x.dtype) / 7  # HERE
        return self.lift(torch.stack([angle.sin(), angle.cos()], 1))


class Centred(Model):
    """A year, less the mean of all years, which is large beside their spread."""

    def read(self, x, number):
        years = number.type_as(x)  # HERE
        return self.lift(torch.stack([(years - 900) / 5, (years - 900) / 20], 1))


class InFloat(Model):
    def read(self, x, number):
        angle = number.float() / 7
        return self.lift(torch.stack([angle.sin(), angle.cos()], 1).to(x.dtype))


class Indexed(Model):
    def read(self, x, number):
        return self.table(number)


class Scaled(Model):
    """A count that is divided by the largest one: neighbours differ by less than the dtype shows."""

    def read(self, x, number):
        share = number.to(x.dtype) / 1000
        return self.lift(torch.stack([share, share * share], 1))


class Masked(Model):
    def read(self, x, number):
        return self.lift.bias * (number % 2 == 0).to(x.dtype)[:, None]


class Ignored(Model):
    def read(self, x, number):
        return 0 * number.to(x.dtype)[:, None]


def checked(model, *, low=0, dtype="bfloat16"):
    torch.manual_seed(0)
    number = torch.randint(low, 1000, (16,))
    contract = Contract(
        model=model,
        inputs={"x": TensorSpec("B 4"), "number": Ints("B", low=low, high=1000)},
        batch=({"x": torch.randn(16, 4), "number": number}, torch.randint(0, 3, (16,))),
        loss=F.cross_entropy,
        dtypes=("float32", dtype),
    )
    return [f for f in contract.check("low-precision").findings if f.code == "integers-merged"]


@pytest.mark.parametrize(("model", "low"), [(CastFirst, 0), (Centred, 800)])
def test_integers_that_are_cast_before_they_are_used(model, low):
    (found,) = checked(model, low=low)
    assert found.status == "violated"
    assert found.location.text.endswith("# HERE")
    assert "casts number to bfloat16" in found.cause


@pytest.mark.parametrize("model", [InFloat, Indexed, Scaled, Masked, Ignored])
def test_integers_that_the_dtype_does_not_harm(model):
    assert not checked(model)


def test_float16_holds_integers_up_to_2048():
    assert not checked(CastFirst, dtype="float16")
