"""Optimizers of one's own that say they average over steps, and do or do not."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from pytest_torchcheck import Contract


class Ball(torch.optim.Optimizer):
    """Heavy ball; what becomes of its velocity is for the subclasses to say."""

    def __init__(self, params, **options):
        super().__init__(params, {"lr": 0.05, "momentum": 0.9, **options})

    def velocity(self, p):
        if "velocity" not in self.state[p]:
            self.state[p]["velocity"] = torch.zeros_like(p)
        return self.state[p]["velocity"]

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                v = self.velocity(p).mul_(group["momentum"]).add_(p.grad)
                p.sub_(group["lr"] * v)


class Renewed(Ball):
    def velocity(self, p):
        self.state[p]["velocity"] = torch.zeros_like(p)  # made here
        return self.state[p]["velocity"]


class OfACopy(Ball):
    def velocity(self, p):
        return super().velocity(p).clone()


class Nothing(Ball):
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(group["lr"] * (1 - group["momentum"]) * p.grad)


class Squares(torch.optim.Optimizer):
    """A mean of squares alone, as in RMSprop."""

    def __init__(self, params):
        super().__init__(params, {"lr": 1e-3, "beta2": 0.9})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                v = self.state[p].setdefault("square", torch.zeros_like(p))
                v.lerp_(p.grad.square(), 1 - group["beta2"])
                p.sub_(group["lr"] * p.grad / (v.sqrt() + 1e-8))


class Late(Ball):
    """The velocity counts after two steps of warm-up."""

    @torch.no_grad()
    def step(self, closure=None):
        self.taken = getattr(self, "taken", 0) + 1
        for group in self.param_groups:
            for p in group["params"]:
                v = self.velocity(p).mul_(group["momentum"]).add_(p.grad)
                p.sub_(group["lr"] * (v if self.taken > 2 else p.grad))


class Growing(Ball):
    """Steps by signs, as Lion, with a velocity in units of a rate that grows from next to nothing."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["scale"] = 10 * group.get("scale", 1e-6)
            for p in group["params"]:
                v = self.velocity(p)
                p.sub_(group["lr"] * group["scale"] ** 0.1 * (0.9 * v + 0.1 * p.grad).sign())
                v.mul_(group["momentum"]).add_(p.grad, alpha=group["scale"])


class Gathering(Ball):
    """Takes no step before it has seen ten gradients, and uses the first of those it keeps."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                kept = self.state[p].setdefault("kept", [])
                kept.append(p.grad.square())
                if len(kept) > 10:
                    scale = kept.pop(0).mean().sqrt() + 1e-8
                    p.sub_(
                        group["lr"] * self.velocity(p).mul_(group["momentum"]).add_(p.grad) / scale
                    )


class Drawing(Ball):
    """Leaves out about half of the parameters in each step."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                v = self.velocity(p).mul_(group["momentum"]).add_(p.grad)
                p.sub_(group["lr"] * v * torch.bernoulli(torch.tensor(0.5)))


class NeedsAClosure(Renewed):
    def step(self, closure):
        closure()
        return super().step()


def found(optimizer):
    made = Contract(
        model=lambda: nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)),
        inputs="B 4",
        targets="B 2",
        loss=F.mse_loss,
        optimizer=lambda model: optimizer(model.parameters()),
    )
    return [f for f in made.check(["weights-update"]).findings if f.status == "violated"]


@pytest.mark.parametrize("optimizer", [Renewed, OfACopy, Nothing])
def test_a_momentum_that_does_not_last_is_found(optimizer):
    (finding,) = found(optimizer)
    assert finding.code == "momentum-lost"
    assert f"{optimizer.__name__} has momentum=0.9" in finding.summary


def test_the_line_is_the_one_that_makes_the_state_again():
    (finding,) = found(Renewed)
    assert finding.location.text.endswith("# made here")
    assert "velocity" in finding.cause


@pytest.mark.parametrize(
    "optimizer",
    [
        Ball,
        Squares,
        Late,
        Growing,
        Gathering,
        Drawing,
        NeedsAClosure,
        lambda params: Renewed(params, momentum=0.0),
    ],
)
def test_averages_that_last_and_optimizers_without_one_are_not_blamed(optimizer):
    assert not found(optimizer)


def test_the_explanation_leaves_the_model_as_it_was():
    model = nn.Linear(4, 2)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    made = Contract(
        model=model,
        inputs="B 4",
        targets="B 2",
        loss=F.mse_loss,
        optimizer=lambda model: Renewed(model.parameters()),
    )
    assert not made.check(["weights-update"]).ok
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


class Counting(torch.optim.Optimizer):
    """An average whose bias is corrected by the number of steps; where that is kept is for the subclasses to say."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.01, "beta": 0.9})

    def count(self, state, group):
        state["step"] = state.get("step", 0) + 1
        return state["step"]

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                number = self.count(state, group)
                mean = state.setdefault("mean", torch.zeros_like(p))
                mean.lerp_(p.grad, 1 - group["beta"])
                p.sub_(group["lr"] * mean / (1 - group["beta"] ** number))


class OfATensor(Counting):
    def count(self, state, group):
        return state.setdefault("step", torch.zeros(())).add_(1)


class OfTheGroup(Counting):
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["t"] = group.get("t", 0) + 1
        return super().step()

    def count(self, state, group):
        return group["t"]


class Local(Counting):
    def count(self, state, group):
        step = state.setdefault("step", torch.zeros(()))
        step = step + 1  # a local name
        return step.clamp(min=1)


class Once(Counting):
    def count(self, state, group):
        return group.setdefault("t", 0) + 1


class Elsewhere(Counting):
    """Counts in the optimizer's own state, beside a number of the group that stays as it is."""

    def count(self, state, group):
        group.setdefault("step", 0)
        self.state["k"] = self.state.get("k", 0) + 1
        return self.state["k"]


class Unread(Counting):
    """Nothing depends on the number that it keeps beside the one that counts."""

    def count(self, state, group):
        state.setdefault("t", 0)
        return super().count(state, group)


@pytest.mark.parametrize("optimizer", [Local, Once])
def test_a_number_of_steps_that_does_not_grow_is_found(optimizer):
    (finding,) = found(optimizer)
    assert finding.code == "steps-not-counted"
    if optimizer is Local:
        assert finding.location.text.endswith("# a local name")


@pytest.mark.parametrize(
    "optimizer", [Counting, OfATensor, OfTheGroup, Elsewhere, Unread, torch.optim.Adam]
)
def test_numbers_of_steps_that_grow_or_that_nothing_reads_are_not_blamed(optimizer):
    assert not found(optimizer)
