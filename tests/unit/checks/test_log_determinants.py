"""A log-determinant is that of the map, and the loss falls with it; other numbers beside a map are none."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, Finding

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)) * 0.7 + 0.3


class Coupling(nn.Module):
    def __init__(self, flip: bool, sign: float = 1.0) -> None:
        super().__init__()
        self.flip, self.sign = flip, sign
        self.net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 4))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        fixed, moved = x.flip(1).chunk(2, 1) if self.flip else x.chunk(2, 1)
        scale, shift = self.net(fixed).chunk(2, 1)
        log_det = self.sign * scale.tanh().sum(1)  # COUPLING
        return torch.cat([fixed, moved * scale.tanh().exp() + shift], 1), log_det


class Mixing(nn.Module):
    """A product with a matrix; half of its log-determinant where it is wrong."""

    def __init__(self, share: float = 1.0, offset: float = 0.0) -> None:
        super().__init__()
        self.weight, self.share, self.offset = nn.Parameter(torch.eye(4) + 0.1), share, offset

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logdet = self.share * torch.linalg.slogdet(self.weight)[1] + self.offset  # MIXING
        return x @ self.weight.T, logdet.expand(len(x))


class Chain(nn.Module):
    def __init__(self, *parts: nn.Module, last: bool = False) -> None:
        super().__init__()
        self.parts, self.last = nn.ModuleList(parts), last

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        log_det = x.new_zeros(len(x))
        for part in self.parts:
            x, more = part(x)
            log_det = more if self.last else log_det + more
        return x, log_det


class Density(nn.Module):
    """The logarithm of a density; what parts return may be subtracted, as that of the inverse map."""

    def __init__(self, body: nn.Module, sign: float = 1.0) -> None:
        super().__init__()
        self.body, self.sign = body, sign

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z, log_det = self.body(x)
        return self.sign * log_det - 0.5 * (z**2 + math.log(2 * math.pi)).sum(1)


class Drawn(nn.Module):
    """Draws by a flow, and says how likely that is: a divergence from a target falls with the log-determinant."""

    def __init__(self, body: nn.Module, sign: float) -> None:
        super().__init__()
        self.body, self.sign = body, sign

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        x, log_det = self.body(z)
        log_q = -0.5 * (z**2).sum(1) - self.sign * log_det
        return -(log_q + (x - 1).abs().sum(1))


class Noisy(nn.Module):
    """Adds noise, and says how likely it was: a bound of a likelihood, and no log-determinant."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        noise = 0.1 * torch.randn_like(x)
        ldj = 50 * (noise**2).sum(1)
        return x + noise, ldj


class Penalised(nn.Module):
    """A layer that gives a penalty beside its output, in a class that speaks of a log_det."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        made = self.layer(x).tanh()
        return made, 0.01 * (made**2).mean(1)


class Pixels(nn.Module):
    """One matrix for the channels of every place, by a method beside ``forward``."""

    def __init__(self, *, each: bool = True, share: float = 1.0) -> None:
        super().__init__()
        self.weight, self.each, self.share = nn.Parameter(torch.eye(4) + 0.1), each, share

    def inverse(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        log_det = self.share * torch.linalg.slogdet(self.weight)[1]
        log_det = log_det * (x[0, 0].numel() if self.each else 1) * x.new_ones(len(x))  # PIXELS
        return F.conv2d(x, self.weight[:, :, None, None]), log_det


class Residual(nn.Module):
    """Adds what a helper returns beside the log-determinant of the sum."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.3 * torch.eye(4) + 0.05)

    def added(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        whole = torch.eye(4) + self.weight
        log_det = x[0, 0].numel() * torch.linalg.slogdet(whole)[1].expand(len(x))
        return F.conv2d(x, self.weight[:, :, None, None]), log_det

    def inverse(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        more, log_det = self.added(x)
        return x + more, log_det


class Estimated(Residual):
    """Estimates the logarithm with random numbers."""

    def inverse(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        made, log_det = super().inverse(x)
        return made, 0.5 * log_det * (1 + torch.randn_like(log_det))


class Iterated(Residual):
    """Finds the map by iterations whose graph is that of the last one alone."""

    def inverse(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = x
        with torch.no_grad():
            for _ in range(40):
                found = x - 0.5 * self.added(found)[0]
        log_det = x[0, 0].numel() * torch.linalg.slogdet(torch.eye(4) + 0.5 * self.weight)[1]
        return x - 0.5 * self.added(found)[0], -log_det.expand(len(x))


class Called(nn.Module):
    """Calls a method of each part; its own output is the density."""

    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        log_q = x.new_zeros(len(x))
        for part in self.parts:
            x, log_det = part.inverse(x)
            log_q = log_q + log_det
        return log_q - 0.5 * (x**2).flatten(1).sum(1)


def couplings(sign: float = 1.0) -> list[nn.Module]:
    return [Coupling(bool(place % 2), sign) for place in range(3)]


def told(make: Any) -> list[Finding]:
    torch.manual_seed(0)
    contract = Contract(model=make, batch=((X,), None), loss=lambda output, _: -output.mean())
    return list(contract.check(["log-determinants"]).findings)


@pytest.mark.parametrize(
    ("make", "cause", "line"),
    [
        (lambda: Density(Chain(*couplings(-1.0))), "the inverse map", "# COUPLING"),
        (lambda: Density(Chain(*couplings()), sign=-1.0), "the loss rises with it", "# COUPLING"),
        (lambda: Density(Chain(*couplings(), Mixing(0.5))), "lacks the factor 2", "# MIXING"),
        (lambda: Density(Chain(*couplings(), Mixing(0.7))), "wrong or missing", "# MIXING"),
        (lambda: Density(Chain(*couplings(), last=True)), "the last part alone", "log_det = more"),
        (lambda: Drawn(Chain(*couplings()), sign=-1.0), "the loss rises with it", "# COUPLING"),
    ],
    ids=["inverse", "subtracted", "half", "less", "last", "drawn"],
)
def test_log_determinants_of_other_maps_and_other_signs(make: Any, cause: str, line: str) -> None:
    (finding,) = told(make)
    assert (finding.status, finding.code) == ("violated", "log-determinant")
    assert cause in finding.cause
    assert finding.location is not None
    assert line in finding.location.text


@pytest.mark.parametrize(
    ("make", "status"),
    [
        (lambda: Density(Chain(*couplings(), Mixing())), "passed"),
        (lambda: Density(Chain(*couplings(-1.0), Mixing(-1.0)), sign=-1.0), "passed"),
        (lambda: Density(Chain(*couplings(), Mixing(offset=-7.5))), "passed"),
        (lambda: Density(Chain(Noisy(), *couplings())), "passed"),
        (lambda: Density(Chain(*couplings(), Penalised())), "passed"),
        (lambda: Drawn(Chain(*couplings(), Mixing()), sign=1.0), "passed"),
        (lambda: nn.Sequential(nn.Linear(4, 4)), "not-applicable"),
    ],
    ids=["forward", "inverse", "constant", "noise", "penalty", "drawn", "plain"],
)
def test_sound_densities_and_other_numbers_beside_a_map(make: Any, status: str) -> None:
    assert [f.status for f in told(make)] == [status]


def test_a_classifier_is_not_asked() -> None:
    batch = (X, torch.arange(6) % 3)
    contract = Contract(model=nn.Linear(4, 3), batch=batch, loss=F.cross_entropy)
    (finding,) = contract.check(["log-determinants"]).findings
    assert finding.status == "not-applicable"


IMAGES = torch.randn(6, 4, 3, 3, generator=torch.Generator().manual_seed(1))


def told_of_images(*parts: nn.Module) -> list[Finding]:
    contract = Contract(
        model=lambda: Called(*parts), batch=((IMAGES,), None), loss=lambda output, _: -output.mean()
    )
    return list(contract.check(["log-determinants"]).findings)


@pytest.mark.parametrize(
    ("part", "cause"),
    [(Pixels(each=False), "lacks the factor 9"), (Pixels(share=0.7), "wrong or missing")],
    ids=["once", "less"],
)
def test_methods_beside_forward(part: nn.Module, cause: str) -> None:
    (finding,) = told_of_images(Pixels(), part, Pixels())
    assert (finding.status, finding.code) == ("violated", "log-determinant")
    assert cause in finding.cause
    assert finding.location is not None
    assert finding.location.text.endswith("# PIXELS")
    assert finding.culprits[0].name == "parts.1"
    assert "inverse" not in vars(part)  # what saw it is gone


@pytest.mark.parametrize(
    "part", [Pixels(), Residual(), Estimated(), Iterated()], ids=lambda part: type(part).__name__
)
def test_sound_methods_and_helpers(part: nn.Module) -> None:
    assert [f.status for f in told_of_images(Pixels(), part, Pixels())] == ["passed"]
