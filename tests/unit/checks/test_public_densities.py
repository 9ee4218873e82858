"""What correct densities and processes of public libraries do, and what no check may call a mistake."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract

if TYPE_CHECKING:
    from pytest_torchcheck.findings import Finding

G = torch.Generator().manual_seed(3)
X = torch.randn(12, 6, generator=G)
Y = torch.randn(12, 6, generator=G)


def look(model, *checks, batch=((X,), None), loss="output") -> list[Finding]:
    torch.manual_seed(0)
    return list(Contract(model=model, batch=batch, loss=loss).check(list(checks)).findings)


# weights that the first batch initialises


class Whitened(nn.Module):
    """A flow that its first batch whitens, by another tensor in ``.data``; the base is learnt too."""

    def __init__(self, *, wrong: bool = False) -> None:
        super().__init__()
        self.shift, self.log_scale = nn.Parameter(torch.zeros(6)), nn.Parameter(torch.zeros(6))
        self.mix = nn.Parameter(torch.linalg.qr(torch.randn(6, 6, generator=G))[0])
        self.loc = nn.Parameter(torch.zeros(1, 6))
        self.register_buffer("done", torch.tensor(False))
        self.wrong = wrong

    def forward(self, x):
        x = x @ self.mix
        if not self.done:
            self.log_scale.data = -x.std(0).log().detach()
            self.shift.data = -(x.mean(0) * self.log_scale.exp()).detach()
            self.done.fill_(True)
        scale = self.log_scale.detach() if self.wrong else self.log_scale
        z = x * scale.exp() + self.shift - self.loc
        return (
            0.5 * z.square().sum(-1).mean()
            - self.log_scale.sum()
            - torch.linalg.slogdet(self.mix)[1]
        )


def test_weights_that_the_first_batch_initialises_are_measured_after_it():
    found = look(Whitened, "gradients-exist", "descent", "weights-update")
    assert {finding.status for finding in found} == {"passed"}, [str(f) for f in found]


def test_a_part_of_the_gradient_that_is_cut_off_behind_such_weights_is_still_missed():
    (found,) = look(lambda: Whitened(wrong=True), "descent")
    assert (found.status, found.code) == ("suspicious", "gradient-partial"), str(found)
    assert "log_scale" in {culprit.name for culprit in found.culprits}


# what a prior holds


class WithPrior(nn.Module):
    """A prior that follows the module when it is moved, as priors of Gaussian processes do."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 1, dtype=torch.double)
        self.register_buffer("width", torch.tensor(0.3, dtype=torch.double))
        self.prior = torch.distributions.LogNormal(self.width.log(), self.width)

    def _apply(self, fn, recurse=True):
        moved = super()._apply(fn, recurse)
        self.prior.base_dist.loc = fn(self.prior.base_dist.loc)
        self.prior.base_dist.scale = fn(self.prior.base_dist.scale)
        return moved

    def forward(self, x):
        weight = F.softplus(self.linear.weight)
        return self.linear(x).square().mean() - self.prior.log_prob(weight).mean()


def test_what_a_distribution_holds_is_put_back():
    model = WithPrior()
    before = model(X.double())
    held = model.prior.base_dist.loc
    report = Contract(model=model, batch=((X.double(),), None), loss="output").check(
        ["tied-weights", "dtype-conversion", "device-portability", "seeding"]
    )
    assert model.prior.base_dist.loc is held
    assert torch.equal(model(X.double()), before)
    assert next(f for f in report.findings if f.check == "seeding").status == "passed"


# a difference in the last bits is no draw


class Unsteady(nn.Module):
    """Adds something else in each call, as kernels do whose sums depend on where operands lie."""

    def __init__(self, size: float) -> None:
        super().__init__()
        self.linear, self.size = nn.Linear(6, 6), size

    def forward(self, x):
        return self.linear(x) * (1 + self.size * (next(_CALLS) % 3))


_CALLS = itertools.count()


@pytest.mark.parametrize(("size", "status"), [(3e-7, "passed"), (1e-3, "violated")])
def test_the_last_bits_may_differ(size: float, status: str):
    found = look(lambda: Unsteady(size), "seeding", batch=((X,), Y), loss=F.mse_loss)
    assert [finding.status for finding in found] == [status], [str(f) for f in found]


# a distribution as output


class Skewed(nn.Module):
    """A density by an affine map of a fixed base: what follows the parameters is a transform."""

    def __init__(self, *, frozen: bool = False) -> None:
        super().__init__()
        self.net, self.frozen = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2)), frozen
        self.register_buffer("zero", torch.zeros(1))
        self.register_buffer("one", torch.ones(1))

    def forward(self, x):
        made = self.net(x) * (0 if self.frozen else 1)
        base = torch.distributions.Normal(self.zero.expand(len(x)), self.one.expand(len(x)))
        move = torch.distributions.AffineTransform(made[:, 0], made[:, 1].clamp(-2, 2).exp())
        return torch.distributions.TransformedDistribution(base, [move])


def likelihood(distribution, y):
    return 5 - distribution.log_prob(y[:, 0]).mean()


def test_a_fixed_base_does_not_say_that_samples_are_not_told_apart():
    found = look(Skewed, "overfit", batch=((X,), Y), loss=likelihood)
    assert {finding.status for finding in found} <= {"passed", "inconclusive"}, str(found[0])


def test_a_density_that_follows_no_parameter_is_no_density_that_learns():
    found = look(lambda: Skewed(frozen=True), "overfit", batch=((X,), Y), loss=likelihood)
    assert [finding.status for finding in found] == ["violated"], str(found[0])


# parameters without a gradient of their own


class Sampler(nn.Module):
    """Draws a weight around two parameters; it wraps them anew, on the same memory."""

    def __init__(self, mean: torch.Tensor) -> None:
        super().__init__()
        self.mean = nn.Parameter(mean)
        self.spread = nn.Parameter(torch.full_like(mean, -3.0))

    def forward(self):
        return self.mean + F.softplus(self.spread) * torch.randn_like(self.mean)


class Drawn(nn.Module):
    """A linear layer with a drawn weight, and memory slots of which there may be none."""

    def __init__(self, *, copied: bool = False, slots: int = 0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 6) / 3)
        self.slots = nn.Parameter(torch.randn(slots, 6))
        self.sampler = Sampler(self.weight.detach().clone() if copied else self.weight)

    def forward(self, x):
        x = torch.cat([self.slots, x])[len(self.slots) :]
        return x @ self.sampler()


def test_a_parameter_on_the_memory_of_another_moves_with_it():
    found = look(Drawn, "gradients-exist", "weights-update", batch=((X,), Y), loss=F.mse_loss)
    assert [finding.status for finding in found] == ["passed", "passed"], str(found[0])
    assert "weight through another on the same memory" in found[0].summary


@pytest.mark.parametrize("fields", [{"copied": True}, {"slots": 2}], ids=str)
def test_a_parameter_with_memory_of_its_own_does_not(fields):
    found = look(lambda: Drawn(**fields), "gradients-exist", batch=((X,), Y), loss=F.mse_loss)
    assert found[0].status == "violated"
    assert [c.name for c in found[0].culprits if c.kind == "parameter"] == [
        "weight" if "copied" in fields else "slots"
    ]


# what observes in both modes


class Observed(nn.Module):
    """A layer behind torch's own observer, or one written by hand that scales by what it has seen."""

    def __init__(self, *, own: bool) -> None:
        super().__init__()
        quantization = torch.ao.quantization
        self.linear = nn.Linear(6, 6)
        self.seen = (
            None if own else quantization.FakeQuantize(quantization.MovingAverageMinMaxObserver)
        )
        if own:
            self.register_buffer("largest", torch.ones(()))

    def forward(self, x):
        x = self.linear(x)
        if self.seen is not None:
            return self.seen(x)
        with torch.no_grad():
            self.largest.lerp_(x.abs().max(), 0.1)
        return x / self.largest


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("own", "status"), [(False, "suspicious"), (True, "violated")])
def test_torchs_observers_observe_in_both_modes(own: bool, status: str):
    found = look(lambda: Observed(own=own), "eval-purity", batch=((X,), Y), loss=F.mse_loss)
    assert [(f.status, f.code) for f in found] == [(status, "eval-writes")], [str(f) for f in found]


# numbers that NumPy draws in both modes


class Walk(nn.Module):
    """A path with noise of NumPy's, as a solver draws it; or with the mean of the batch in its place."""

    def __init__(self, *, mixes: bool) -> None:
        super().__init__()
        self.drift, self.mixes = nn.Linear(6, 6), mixes

    def forward(self, x):
        if self.mixes:
            return x + self.drift(x) - x.mean(0)
        noise = np.random.standard_normal(tuple(x.shape))
        return x + self.drift(x) + torch.from_numpy(noise).to(x)


@pytest.mark.parametrize(("mixes", "status"), [(False, "passed"), (True, "violated")])
def test_noise_of_another_generator_is_no_effect_of_the_batch(mixes: bool, status: str):
    found = look(lambda: Walk(mixes=mixes), "batch-sizes", batch=((X,), Y), loss=F.mse_loss)
    assert [finding.status for finding in found] == [status], str(found[0])
