"""Gradients that stand in for a derivative: forward rounds, or passes its input on within bounds."""

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
        return x.clamp(min=-0.1)

    @staticmethod
    def backward(ctx, slope):
        return slope


class Keeps(Bounded):
    """Bounds values, and keeps what tells where."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(min=-0.1)


class BoundSTE(Keeps):
    pass


class Ste2Bound(Keeps):
    """Another name of it."""


class Instep(Keeps):
    """No estimator by its name."""


class Passing(Keeps):
    """Bounds values; the gradient goes straight through."""


@pytest.mark.parametrize(
    ("function", "status"),
    [(BoundSTE, "suspicious"), (Ste2Bound, "suspicious"), (Passing, "suspicious"),
     (Keeps, "violated"), (Instep, "violated"), (Bounded, "suspicious")],
)  # fmt: skip
def test_a_name_says_what_is_meant_and_a_forward_that_keeps_nothing(function, status):
    found = [f for f in found_in(function.apply) if f.code == "gradcheck-mask"]
    assert [f.status for f in found] == [status], [str(f) for f in found]


def found_in(act):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)

        def forward(self, x):
            return self.last(act(3 * self.first(x)))

    torch.manual_seed(0)
    contract = Contract(model=Net, batch=((torch.randn(5, 4),), torch.randn(5, 2)), loss=F.mse_loss)
    return [f for f in contract.check(["gradcheck"]).findings if f.status != "passed"]


class Grid(torch.autograd.Function):
    """Rounds to so many levels of the largest value, which moves with the input."""

    @staticmethod
    def forward(ctx, x, levels):
        step = x.abs().max() / levels
        return (x / step).round() * step

    @staticmethod
    def backward(ctx, slope):
        return slope, None


class Coarse(torch.autograd.Function):
    """A product with rounded weights; its gradients are those of the exact product."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        step = weight.abs().max() / 7
        return x @ ((weight / step).round() * step)

    @staticmethod
    def backward(ctx, slope):
        x, weight = ctx.saved_tensors
        return slope @ weight.T, x.T @ slope


class Turned(Coarse):
    """The same with a transpose too few."""

    @staticmethod
    def backward(ctx, slope):
        x, weight = ctx.saved_tensors
        return slope @ weight, x.T @ slope


class LearntStep(torch.autograd.Function):
    """Rounds to a step that is learnt."""

    @staticmethod
    def forward(ctx, x, step):
        ctx.save_for_backward(x, step)
        return (x / step).round().clamp(-4, 3) * step

    @staticmethod
    def backward(ctx, slope):
        x, step = ctx.saved_tensors
        place = x / step
        inside = (place >= -4) & (place <= 3)
        other = torch.where(inside, place.round() - place, place.clamp(-4, 3))
        return slope * inside, (slope * other).sum()


class Kinked(torch.autograd.Function):
    """Jumps once, and follows a slope elsewhere: its gradient is wrong."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.where(x > 0, 2 * x + 0.2, x)

    @staticmethod
    def backward(ctx, slope):
        (x,) = ctx.saved_tensors
        return torch.where(x > 0, slope, 2 * slope)


class Wave(torch.autograd.Function):
    """Moves up and down within a step, without a jump: its gradient is wrong."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.sin(60 * x) / 60

    @staticmethod
    def backward(ctx, slope):
        (x,) = ctx.saved_tensors
        return slope * torch.sin(60 * x)


class Cut(torch.autograd.Function):
    """Values as they are; the gradient is bounded."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, slope):
        return slope.clamp(-1e-3, 1e-3)


class Range(torch.autograd.Function):
    """Values within a range; every gradient passes."""

    @staticmethod
    def forward(ctx, x):
        return x.clamp(-0.5, 0.5)

    @staticmethod
    def backward(ctx, slope):
        return slope


torch.manual_seed(3)
WEIGHT = nn.Parameter(torch.randn(8, 8) / 2)
STEP = nn.Parameter(torch.tensor(0.4))


@pytest.mark.parametrize(
    "act",
    [lambda h: Grid.apply(h, 4), lambda h: Grid.apply(h, 100), lambda h: Grid.apply(h, 20000),
     lambda h: Coarse.apply(h, WEIGHT), lambda h: LearntStep.apply(h, STEP), Range.apply],
    ids=["grid", "fine-grid", "very-fine-grid", "weights", "learnt", "range"],
)  # fmt: skip
def test_nobody_writes_an_estimator_by_accident(act):
    found = found_in(act)
    assert {f.status for f in found} == {"suspicious"}, [str(f) for f in found]
    assert "wrong" not in " ".join(f"{f.summary} {f.cause}" for f in found)


@pytest.mark.parametrize(
    "act",
    [lambda h: Turned.apply(h, WEIGHT), Kinked.apply, Wave.apply],
    ids=["transpose", "one-jump", "wave"],
)
def test_a_wrong_gradient_stays_one(act):
    assert "violated" in {f.status for f in found_in(act)}


def test_a_function_that_bounds_gradients_alone():
    found = found_in(Cut.apply)
    assert {f.status for f in found} <= {"suspicious"}, [str(f) for f in found]


def _quantised(wrong):
    class Quantised(torch.autograd.Function):
        """Rounds to steps of a learned size; the size gets what rounding adds, an estimate."""

        @staticmethod
        def forward(ctx, x, size):
            ctx.save_for_backward(x, size)
            return (x / size).round().clamp(-7, 7) * size

        @staticmethod
        def backward(ctx, slope):
            x, size = ctx.saved_tensors
            steps = x / size
            inside = steps.abs() <= 7
            kept = torch.where(inside, steps.round() - steps, 7 * steps.sign())
            return slope * inside, (slope * kept).sum().reshape(size.shape)

    class Scaled(torch.autograd.Function):
        """Multiplies by a size, without a step, and forgets a factor."""

        @staticmethod
        def forward(ctx, x, size):
            ctx.save_for_backward(x, size)
            return x / size

        @staticmethod
        def backward(ctx, slope):
            x, size = ctx.saved_tensors
            return slope / size, -(slope * x / size).sum().reshape(size.shape)

    return Scaled if wrong else Quantised


@pytest.mark.parametrize("wrong", [False, True])
def test_a_learned_size_of_steps_is_estimated(wrong):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)
            self.size = nn.Parameter(torch.tensor(0.11))

        def forward(self, x):
            weight = _quantised(wrong).apply(self.last.weight, self.size)
            return F.linear(self.first(x).relu(), weight, self.last.bias)

    torch.manual_seed(0)
    made = Contract(model=Net(), batch=((torch.randn(5, 4),), torch.randn(5, 2)), loss=F.mse_loss)
    statuses = [f.status for f in made.check(["gradcheck"]).findings]
    assert ("violated" in statuses) == wrong
