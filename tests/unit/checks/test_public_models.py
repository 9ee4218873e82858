"""What correct models of public libraries do, and what no check may call a mistake."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.flex_attention import flex_attention

from pytest_torchcheck import Contract

if TYPE_CHECKING:
    from pytest_torchcheck.findings import Finding

G = torch.Generator().manual_seed(3)
X = torch.randn(6, 8, generator=G)
Y = torch.randn(6, 8, generator=G)


def look(model, *checks, batch=((X,), Y), loss=F.mse_loss) -> list[Finding]:
    return list(Contract(model=model, batch=batch, loss=loss).check(list(checks)).findings)


def statuses(findings: list[Finding]) -> set[str]:
    return {finding.status for finding in findings}


# a derivative as output


class Potential(nn.Module):
    """The force of a potential: its last bias has no influence on it."""

    def __init__(self, *, functional: bool = False) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 12), nn.Linear(12, 1)
        self.functional = functional

    def potential(self, x):
        return self.last(F.softplus(self.first(x))).sum()

    def forward(self, x):
        if self.functional:
            return torch.func.grad(self.potential)(x)
        x = x if x.requires_grad else x.clone().requires_grad_()
        with torch.enable_grad():
            return torch.autograd.grad(self.potential(x), x, create_graph=True)[0]


@pytest.mark.parametrize("functional", [False, True], ids=["autograd.grad", "func.grad"])
def test_a_bias_that_a_derivative_drops(functional: bool) -> None:
    found = look(lambda: Potential(functional=functional), "gradients-exist", "weights-update")
    assert statuses(found) == {"suspicious", "passed"}
    (lost,) = [f for f in found if f.status == "suspicious"]
    assert lost.culprits[0].name == "last.bias"
    assert "the derivative does not depend on it" in lost.cause
    assert "MayLackGradient('last.bias'" in lost.fix
    assert "3 of 4 trainable parameters changed" in str(found[-1])


def test_a_cut_beside_a_derivative_is_one() -> None:
    class Loses(Potential):
        def forward(self, x):
            return self.last(self.first(x).detach()) + 0 * super().forward(x).detach()

    found = look(Loses, "gradients-exist")
    assert statuses(found) == {"violated"}
    assert "detach" in found[0].cause


# an attention of one position, written by hand


class Attends(nn.Module):
    def __init__(self, *, wrong: bool = False) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.wrong = wrong

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (2, 4)).transpose(1, 2) for f in (self.q, self.k, self.v))
        scores = q @ k.mT / 2.0
        weights = scores.unsqueeze(-1).softmax(-1).squeeze(-1) if self.wrong else scores.softmax(-1)
        return (weights @ v).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("length", [1, 3])
def test_attention_over_the_positions_that_there_are(length: int) -> None:
    x = torch.randn(4, length, 8, generator=G)
    found = look(Attends, "gradients-exist", "weights-update", batch=((x,), x.flip(0)))
    assert statuses(found) == ({"inconclusive", "passed"} if length == 1 else {"passed"})


def test_a_softmax_over_a_dimension_of_its_own_is_wrong() -> None:
    x = torch.randn(4, 3, 8, generator=G)
    found = look(lambda: Attends(wrong=True), "gradients-exist", batch=((x,), x.flip(0)))
    assert statuses(found) == {"violated"}
    assert "softmax over a single entry" in found[0].cause


# an output that keeps an input where no tensor shows it


class Conditioned(torch.distributions.Distribution):
    arg_constraints: dict[str, object] = {}  # noqa: RUF012 - as torch's own

    def __init__(self, locate) -> None:
        super().__init__(validate_args=False)
        self.locate = locate

    def log_prob(self, value):
        return -(value - self.locate()).square().sum(-1)


class Flow(nn.Module):
    def __init__(self, *, ignores: bool = False) -> None:
        super().__init__()
        self.net, self.ignores = nn.Linear(8, 8), ignores

    def forward(self, c):
        return Conditioned(functools.partial(self.net, torch.ones_like(c) if self.ignores else c))


def likelihood(output, target):
    return -output.log_prob(target).mean()


def test_a_condition_that_only_the_loss_reads_has_an_influence() -> None:
    found = look(Flow, "sampling-paths", "input-influence", loss=likelihood)
    assert statuses(found) <= {"passed", "not-applicable"}, found
    found = look(lambda: Flow(ignores=True), "input-influence", loss=likelihood)
    assert statuses(found) == {"violated"}


# tuples whose class refuses len()


class Pairs(tuple):
    __slots__ = ()

    def __len__(self) -> int:
        raise NotImplementedError

    def __bool__(self) -> bool:
        raise NotImplementedError


class Holds(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layout = Pairs((1, Pairs((2, 3))))
        self.inside = {"pairs": [self.layout]}
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        return self.layer(x)


def test_values_that_refuse_len_stop_no_check() -> None:
    report = Contract(model=Holds, batch=((X,), Y), loss=F.mse_loss).check()
    assert report.counts()["error"] == 0
    assert report.ok, str(report)


# state that the first forward writes


class Initialised(nn.Module):
    """Scales by the first batch that it sees, or by an average over all."""

    def __init__(self, *, always: bool = False) -> None:
        super().__init__()
        self.layer, self.always = nn.Linear(8, 8), always
        self.register_buffer("ready", torch.tensor(False))
        self.register_buffer("scale", torch.ones(8))

    def forward(self, x):
        if self.always:
            self.scale.lerp_(x.detach().std(0), 0.1)
        elif not self.ready:
            self.scale.copy_(x.detach().std(0))
            self.ready.fill_(True)
        return self.layer(x / self.scale)


def test_what_only_the_first_forward_writes_may_be_meant() -> None:
    (once,) = look(Initialised, "eval-purity")
    assert (once.status, once.code) == ("suspicious", "eval-writes")
    assert "the first forward initialises" in once.cause
    (always,) = look(lambda: Initialised(always=True), "eval-purity")
    assert (always.status, always.code) == ("violated", "eval-writes")


# noise from a generator that the forward makes


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        own = torch.Generator().manual_seed(int(np.random.randint(1 << 30)))
        return self.layer(x) + torch.randn(x.shape, generator=own)


class Placed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        return self.layer(x) * torch.arange(1.0, len(x) + 1)[:, None]


def test_noise_of_a_generator_of_its_own_does_not_tell_of_places() -> None:
    assert statuses(look(Noisy, "batch-independence")) == {"passed"}
    assert statuses(look(Placed, "batch-independence")) == {"violated"}


# a solver whose steps are chosen for the whole batch


class Solves(nn.Module):
    """Integrates dy/dt = -y with as many steps as the whole batch asks for."""

    def __init__(self, order: int) -> None:
        super().__init__()
        self.layer, self.order = nn.Linear(8, 8), order

    def forward(self, x):
        y = self.layer(x)
        steps = 48 + int(8 * x.norm())
        step = 1 / steps
        factor = 1 - step + (step**2 / 2 if self.order == 2 else 0)
        for _ in range(steps):
            y = y * factor
        return y


@pytest.mark.parametrize(("order", "status"), [(2, "suspicious"), (1, "violated")])
def test_what_a_tolerance_lets_samples_share(order: int, status: str) -> None:
    found = look(lambda: Solves(order), "batch-independence")
    assert statuses(found) == {status}, found


# what torch itself cannot do here


class Flexible(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        heads = self.layer(x)[:, None, :, None].expand(-1, 1, -1, 4).contiguous()
        return flex_attention(heads, heads, heads).mean((1, 3))


class Unfinished(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        raise NotImplementedError("this model does not support training on cpu")


def test_a_device_for_which_torch_lacks_a_backward_decides_nothing() -> None:
    (found,) = look(Flexible, "backward")
    assert found.status == "inconclusive"
    assert "torch cannot run this model on cpu" in found.summary
    assert statuses(look(Unfinished, "backward")) == {"violated"}


# gradients that use a symmetry


class Quadratic(torch.autograd.Function):
    """x' A x for each row, with a gradient that holds for a symmetric A."""

    @staticmethod
    def forward(ctx, x, a):
        ctx.save_for_backward(x, a)
        return ((x @ a) * x).sum(-1)

    @staticmethod
    def backward(ctx, grad):
        x, a = ctx.saved_tensors
        return 2 * grad[:, None] * (x @ a), torch.einsum("b,bi,bj->ij", grad, x, x)


class Wrong(Quadratic):
    @staticmethod
    def backward(ctx, grad):
        x, a = ctx.saved_tensors
        return grad[:, None] * (x @ a), torch.einsum("b,bi,bj->ij", grad, x, x)


class Form(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.layer, self.root = nn.Linear(8, 4), nn.Parameter(torch.zeros(4, 4))
        self.function = function

    def forward(self, x):
        return self.function.apply(self.layer(x), self.root + self.root.mT)


@pytest.mark.parametrize(
    ("function", "status"), [(Quadratic, "suspicious"), (Wrong, "violated")], ids=["sound", "wrong"]
)
def test_a_gradient_for_symmetric_matrices(function, status: str) -> None:
    found = look(lambda: Form(function), "gradcheck", batch=((X,), Y[:, 0]))
    assert {f.status for f in found} - {"passed"} == {status}, found


# signals that fade to nothing


def deep(count: int, std: float, act: type[nn.Module] = nn.Tanh, zero_at: int | None = None):
    def build() -> nn.Module:
        layers: list[nn.Module] = []
        for place in range(count):
            layer = nn.Linear(8, 8, bias=False)
            nn.init.normal_(layer.weight, std=std)
            if place == zero_at:
                nn.init.zeros_(layer.weight)
            layers += [layer, act()]
        return nn.Sequential(*layers[:-1])

    return build


@pytest.mark.parametrize(
    "build",
    [deep(24, 1e-3), deep(24, 1e-3, nn.ReLU), deep(10, 1e-9), deep(8, 1e-16)],
    ids=["below-float32", "relu", "steep", "at-once"],
)
def test_a_signal_that_has_faded_to_zero(build) -> None:
    (found,) = look(build, "signal-propagation")
    assert (found.status, found.code) == ("violated", "signal-vanishes")


@pytest.mark.parametrize("zero_at", [None, 2, 7, 8])
def test_a_layer_that_starts_at_zero_is_no_fading(zero_at: int | None) -> None:
    (found,) = look(deep(9, 1 / math.sqrt(8), zero_at=zero_at), "signal-propagation")
    assert found.status in ("passed", "inconclusive")


# neurons that do not fire at first


class Fires(torch.autograd.Function):
    """A spike where a potential is above its threshold, with a smooth gradient in its place."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x > 0).to(x)

    @staticmethod
    def backward(ctx, slope):
        (x,) = ctx.saved_tensors
        return slope / (1 + x.abs()) ** 2


class Spiking(nn.Module):
    """Counts the spikes of neurons whose threshold is far away when they are built."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x):
        hidden = Fires.apply(self.first(x))
        return torch.stack([Fires.apply(self.last(hidden) - 1.0 - k / 9) for k in range(9)]).mean(0)


def test_neurons_that_do_not_fire_at_two_weights_follow_them_all_the_same() -> None:
    torch.manual_seed(0)
    found = look(Spiking, "overfit", batch=((X,), torch.arange(6) % 3), loss=F.cross_entropy)
    assert statuses(found) <= {"passed", "inconclusive"}, str(found[0])
