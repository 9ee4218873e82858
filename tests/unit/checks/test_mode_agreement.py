"""Statistics that run away or settle elsewhere are found; averages, power iterations, queues and dropout are not blamed."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, Finding
from pytest_torchcheck.runs.variants.settling import asking_for_mode

X = torch.randn(12, 5, generator=torch.Generator().manual_seed(0))
Y = torch.arange(12) % 3


class Scaled(nn.Module):
    """Divides by the size of the batch in training, and by a running size in evaluation."""

    momentum = 0.05

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(5, 8), nn.Linear(8, 3)
        self.drop, self.norm = nn.Dropout(0.2), nn.BatchNorm1d(8)
        self.register_buffer("size", torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(self.body(x) * 3.0)
        size = h.detach().abs().mean(0)
        if self.training:
            with torch.no_grad():
                self.update(size)
        else:
            size = self.used()
        return self.head(self.drop(h / (size + 0.1)))

    def update(self, size: torch.Tensor) -> None:
        self.size.mul_(1 - self.momentum).add_(size, alpha=self.momentum)

    def used(self) -> torch.Tensor:
        return self.size


class RunsAway(Scaled):
    def update(self, size: torch.Tensor) -> None:
        self.size.add_(self.size - size, alpha=self.momentum)  # HERE


class GrowsByItsMomentum(Scaled):
    def update(self, size: torch.Tensor) -> None:
        self.size.mul_(1 + self.momentum).add_(size, alpha=self.momentum)  # HERE


class AveragesSquares(Scaled):
    def update(self, size: torch.Tensor) -> None:
        self.size.lerp_(size.square() * 4.0, self.momentum)  # HERE


class ForgetsTheRest(Scaled):
    def update(self, size: torch.Tensor) -> None:
        self.size.mul_(1 - self.momentum).add_(size, alpha=0.5)  # HERE


class Assigned(Scaled):
    def update(self, size: torch.Tensor) -> None:
        self.size = torch.lerp(self.size, size, self.momentum)


class Corrected(Scaled):
    """Stores a product, and divides by the sum of its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.zeros(()))
        self.size.zero_()

    def update(self, size: torch.Tensor) -> None:
        self.size.lerp_(size, self.momentum)
        self.weight.lerp_(torch.ones(()), self.momentum)

    def used(self) -> torch.Tensor:
        return self.size / self.weight.clamp(min=1e-6)


class Counts(Scaled):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros(()))

    def update(self, size: torch.Tensor) -> None:
        super().update(size)
        self.steps.add_(1.0)


class Spectral(nn.Module):
    """One power iteration in each training forward."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.head = nn.Parameter(torch.randn(8, 5)), nn.Linear(8, 3)
        self.register_buffer("u", F.normalize(torch.randn(8), dim=0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            v = F.normalize(self.weight.T @ self.u, dim=0)
            if self.training:
                self.u.copy_(F.normalize(self.weight @ v, dim=0))
        return self.head(x @ (self.weight / (self.u @ self.weight @ v)).T)


class Queue(nn.Module):
    """Remembers the latest features, which a loss of its own would read."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(5, 8), nn.Linear(8, 3)
        self.register_buffer("latest", torch.zeros(24, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.dropout(self.body(x).relu(), 0.1, self.training)
        if self.training:
            self.latest = torch.cat([h.detach(), self.latest])[:24]
        return self.head(h)


class FunctionalNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(5, 8), nn.Linear(8, 3)
        self.register_buffer("m", torch.zeros(8))
        self.register_buffer("v", torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.batch_norm(self.body(x), self.m, self.v, training=self.training)
        return self.head(F.dropout(h.relu(), p=0.3, training=self.training))


class Annealed(Scaled):
    """Multiplies a number with every step, whatever the batch, and reads it."""

    rate = 1.01

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("heat", torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.heat.mul_(self.rate)
        return super().forward(x) * self.heat


class Cooled(Annealed):
    rate = 0.9


class WarmsUp(Annealed):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.heat.add_(1)
        return Scaled.forward(self, x) * (self.heat / 100).clamp(max=1)


class Chained(nn.Module):
    """Scales by an average of averages, in both modes: each moves faster for as long as the one before it moves."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(5, 3)
        for number in range(4):
            self.register_buffer(f"size{number}", torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        size = x.detach().abs().max()
        for number in range(4):
            average = self.get_buffer(f"size{number}")
            size = average.lerp_(size, 0.05) if self.training else average
        return self.head(x) / size


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x + 0.1 * torch.randn_like(x) if self.training else x)


class Skips(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm, self.head = nn.Linear(5, 8), nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.body(x).tanh()
        return self.head(self.norm(h) if self.training else h)


def told(model: Any) -> list[Finding]:
    """Return what mode-agreement finds."""
    torch.manual_seed(0)
    contract = Contract(model=model, batch=((X,), Y), loss=F.cross_entropy)
    findings = contract.check(checks=["mode-agreement"]).findings
    return [f for f in findings if f.status in ("violated", "suspicious", "error")]


@pytest.mark.parametrize(
    ("model", "code"),
    [
        (RunsAway, "statistics-grow"),
        (GrowsByItsMomentum, "statistics-grow"),
        (AveragesSquares, "statistics-biased"),
        (ForgetsTheRest, "statistics-biased"),
    ],
)
def test_statistics_that_do_not_settle_at_the_batch_are_named(
    model: type[nn.Module], code: str
) -> None:
    (finding,) = told(model)
    assert (finding.status, finding.code) == ("violated", code)
    assert [c.name for c in finding.culprits] == ["size"]
    assert finding.location is not None
    assert finding.location.text.endswith("# HERE")


@pytest.mark.parametrize(
    "model",
    [
        Annealed,
        Chained,
        Cooled,
        WarmsUp,
        Scaled,
        Assigned,
        Corrected,
        Counts,
        Spectral,
        Queue,
        FunctionalNorm,
        Noisy,
    ],
)
def test_sound_statistics_and_noise_are_silent(model: type[nn.Module]) -> None:
    assert told(model) == []


def test_a_layer_of_one_mode_is_no_more_than_suspicious() -> None:
    (finding,) = told(Skips)
    assert (finding.status, finding.code) == ("suspicious", "modes-differ")


class Folded(nn.Module):
    """Folds its norm into the linear layer before it, in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm = nn.Linear(5, 8), nn.BatchNorm1d(8)
        self.slow = copy.deepcopy(self.norm)
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            h = (self.norm(self.body(x)) + self.slow(self.body(x))) / 2
        else:
            scale = self.norm.weight * self.factor()
            bias = (self.body.bias - self.mean()) * scale + self.norm.bias
            h = F.linear(x, self.body.weight * scale[:, None], bias)
        return self.head(h)

    def factor(self) -> torch.Tensor:
        return (self.norm.running_var + self.norm.eps).rsqrt()

    def mean(self) -> torch.Tensor:
        return self.norm.running_mean


class FoldsTheVariance(Folded):
    def factor(self) -> torch.Tensor:
        return 1 / (self.norm.running_var + self.norm.eps)  # HERE


class AddsTheMean(Folded):
    def mean(self) -> torch.Tensor:
        return -self.norm.running_mean  # HERE


@pytest.mark.parametrize(
    ("model", "buffer"), [(FoldsTheVariance, "running_var"), (AddsTheMean, "running_mean")]
)
def test_modes_that_agree_at_the_first_statistics_only(model: type[nn.Module], buffer: str) -> None:
    (finding,) = told(model)
    assert (finding.status, finding.code) == ("violated", "modes-differ")
    assert [c.name for c in finding.culprits] == [f"norm.{buffer}", f"slow.{buffer}"]
    assert finding.location is not None
    assert finding.location.text.endswith("# HERE")


def test_a_folded_norm_and_its_copy_agree_at_all_statistics() -> None:
    assert told(Folded) == []


def traced(method: Any) -> Any:
    def wrapper(*args: Any) -> Any:
        return method(*args)

    return wrapper


class Decorated(nn.Linear):
    @traced
    @traced
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * (2.0 if self.training else 1.0)


class Property(nn.Linear):
    @property
    def scale(self) -> float:
        return next(2.0 if self.training else 1.0 for _ in range(1))


class Mentions(nn.Linear):
    """Its words alone say self.training."""


def test_who_asks_for_the_mode_is_read_from_code_behind_decorators_and_properties() -> None:
    made = nn.ModuleList([kind(2, 2) for kind in (Decorated, Property, Mentions, nn.Linear)])
    assert asking_for_mode(made) == ["Decorated", "Property"]


@pytest.mark.parametrize(
    ("momentum", "told"), [(0.99, True), (0.9, True), (0.1, False), (1.0, False), (None, False)]
)
def test_running_statistics_that_keep_a_tenth_are_told(momentum, told):
    """At 1.0 the statistics of one batch are asked for, and None averages over all of them."""

    def model():
        return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4, momentum=momentum), nn.ReLU())

    report = Contract(model=model, inputs="B 1 8 8", sizes={"B": 4}).check(["mode-agreement"])
    wrong = [f for f in report.findings if f.status == "suspicious"]
    assert [f.code for f in wrong] == ["statistics-forgotten"] * told


class Whitened(nn.Module):
    """Normalises by ``F.batch_norm`` with statistics of its own, which it may never see again."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.body, self.how = nn.Conv1d(2, 6, 3), how
        self.register_buffer("average", torch.zeros(6))
        self.spread = torch.ones(6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.body(x)
        mean, var = self.average, self.spread
        if self.how != "in place":
            mean, var = mean + 0, var + 0
        learns = self.training or self.how == "always"
        h = F.batch_norm(h, mean, var, training=learns, momentum=0.2)
        if self.training and self.how == "copied":
            self.average = mean.detach()
            self.spread = var.detach()
        return h.amax(2)


def still(momentum: float | None, *, loaded: bool = False) -> nn.Module:
    norm = nn.BatchNorm2d(4, momentum=momentum)
    if loaded:
        nn.init.normal_(norm.running_mean)
    return nn.Sequential(nn.Conv2d(1, 4, 3), norm, nn.Flatten(), nn.Linear(64, 2))


@pytest.mark.parametrize(
    ("model", "inputs", "status"),
    [
        (lambda: Whitened("dropped"), "B 2 7", "violated"),
        (lambda: Whitened("in place"), "B 2 7", ""),
        (lambda: Whitened("copied"), "B 2 7", ""),
        (lambda: Whitened("always"), "B 2 7", ""),
        (lambda: still(0.0), "B 1 6 6", "violated"),
        (lambda: still(0.0, loaded=True), "B 1 6 6", "suspicious"),
        (lambda: still(None), "B 1 6 6", ""),
        (lambda: still(0.01), "B 1 6 6", ""),
    ],
    ids=["dropped", "in place", "copied", "always", "no momentum", "loaded", "cumulative", "slow"],
)
def test_statistics_that_no_batch_moves(model: Any, inputs: str, status: str) -> None:
    contract = Contract(
        model=model, inputs=inputs, targets="B", loss=lambda o, _: o.square().mean()
    )
    found = [
        f for f in contract.check(["mode-agreement"]).findings if f.code == "statistics-forgotten"
    ]
    assert [f.status for f in found] == ([status] if status else [])
