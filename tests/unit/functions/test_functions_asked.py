"""Functions of which a model asks no gradient, and errors that hang on place or values."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.autograd import Function

from pytest_torchcheck import Contract
from pytest_torchcheck.functions.engine import check_function
from pytest_torchcheck.promises import TwiceDifferentiable


class HalfSine(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 0.5 * g * x.cos()


class Floor(Function):
    @staticmethod
    def forward(ctx, x):
        return x.floor()

    @staticmethod
    def backward(ctx, g):
        return g


class NoBackward(Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()


class Angle(Function):
    @staticmethod
    def forward(ctx, y, x):
        ctx.save_for_backward(y, x)
        return torch.atan2(y, x)

    @staticmethod
    def backward(ctx, g):
        y, x = ctx.saved_tensors
        square = x * x + y * y
        return -g * y / square, g * x / square


class LastEntry(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.exp(0.3 * x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        out = 0.3 * g * torch.exp(0.3 * x)
        out[..., -1, -1] = 0
        return out


class Largest(Function):
    @staticmethod
    def forward(ctx, x):
        values, places = x.max(1)
        ctx.save_for_backward(places)
        ctx.shape = x.shape
        return values, places.to(x.dtype)

    @staticmethod
    def backward(ctx, g, g_places):
        (places,) = ctx.saved_tensors
        return g.new_zeros(ctx.shape).scatter(1, places[:, None], (g + g_places)[:, None])


class Counts(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.factors = [3.0]
        return 3 * x

    @staticmethod
    def backward(ctx, g):
        return g * (ctx.factors.pop() if ctx.factors else 0.0)


class Cube(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(3 * x * x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        (slope,) = ctx.saved_tensors
        return g * slope


class Applies(nn.Module):
    """Apply a Function: to raw data before a layer, behind it, or with no parameter at all."""

    def __init__(self, function, where, *others):
        super().__init__()
        self.function, self.where, self.others = function, where, others
        if where != "alone":
            self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x):
        if self.where == "behind":
            return self.function.apply(self.scale * x, *self.others)
        out = self.function.apply(x, *self.others)
        return out if self.where == "alone" else self.scale * out


def gradcheck(model, *, shape=(4, 5), promises=()):
    batch = (torch.randn(shape, generator=torch.Generator().manual_seed(0)),), None
    checks = ["gradcheck", *(["double-backward"] if promises else [])]
    report = Contract(model=model, batch=batch, promises=promises).check(checks)
    return [(f.status, f.code) for f in report.findings if f.status != "passed"], report


@pytest.mark.parametrize("where", ["raw", "alone", "behind"])
def test_a_wrong_gradient_is_found_whether_or_not_the_model_asks_for_it(where):
    found, _ = gradcheck(Applies(HalfSine, where))
    assert found == [("violated", "gradcheck-scale")]


class Reversed(torch.autograd.Function):
    """Gradient reversal: the identity, whose gradient is negated and scaled."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return -0.5 * g


class Wrapped(torch.autograd.Function):
    """Not the identity: a constant factor of its gradient is a mistake."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        return g


@pytest.mark.parametrize("where", ["raw", "alone", "behind"])
def test_an_estimator_is_reported_and_does_not_fail(where):
    assert gradcheck(Applies(Floor, where))[0] == [("suspicious", "gradcheck-surrogate")]


@pytest.mark.parametrize("shape", [(4, 5), (30, 40)])
def test_what_is_too_large_for_every_entry_is_judged_alike(shape):
    for function in (Floor, Reversed):
        found, _ = gradcheck(Applies(function, "behind"), shape=shape)
        assert [status for status, _ in found] == ["suspicious"]
    assert gradcheck(Applies(Wrapped, "behind"), shape=shape)[0] == [
        ("violated", "gradcheck-scale")
    ]


def test_a_function_of_the_identity_is_written_for_its_gradient():
    assert gradcheck(Applies(Reversed, "behind"))[0] == [("suspicious", "gradcheck-scale")]
    assert gradcheck(Applies(Wrapped, "behind"))[0] == [("violated", "gradcheck-scale")]


def test_without_a_backward_and_without_need_of_one():
    found, report = gradcheck(Applies(NoBackward, "raw"))
    assert found == [("not-applicable", "not-applicable")]
    assert "asks no gradient" in report.findings[0].summary
    assert gradcheck(Applies(NoBackward, "behind"))[0] == [("violated", "gradcheck-raises")]


def test_an_exchange_counts_where_one_of_both_is_asked_for():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.other = nn.Parameter(torch.randn(4, 5))

        def forward(self, x):
            return Angle.apply(x, self.other)

    assert gradcheck(Net())[0] == [("violated", "gradcheck-swapped")]


@pytest.mark.parametrize("shape", [(4, 5), (6, 7), (12, 20)])
def test_an_error_at_the_last_place_is_no_matter_of_values(shape):
    found, report = gradcheck(Applies(LastEntry, "behind"), shape=shape)
    assert found == [("violated", "gradcheck-entries")]
    assert "wrong at 1 of" in report.causes[0].summary


def test_an_output_that_is_constant_and_not_marked():
    found, report = gradcheck(Applies(Largest, "behind"))
    assert found == [("violated", "gradcheck-output")]
    assert "mark_non_differentiable output 1" in report.causes[0].fix
    assert "not marked non-differentiable" in report.causes[0].cause


def test_state_that_is_used_up_is_not_taken_for_randomness():
    (finding,) = check_function(Counts.apply, (torch.randn(5),))
    assert (finding.status, finding.code) == ("violated", "backward-not-reentrant")


@pytest.mark.parametrize("promised", [True, False])
def test_a_second_derivative_that_is_wrong_at_drawn_values_is_wrong(promised):
    promises = (TwiceDifferentiable(),) if promised else ()
    found, _ = gradcheck(Applies(Cube, "behind"), shape=(6,), promises=promises)
    assert ("violated" if promised else "suspicious", "double-backward-wrong") in found
