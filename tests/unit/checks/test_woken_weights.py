"""What stands behind weights that start at zero is held to the promises too; sound models of that kind pass."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, Finding, promises

X = torch.randn(6, 7, 5, generator=torch.Generator().manual_seed(0))
Y = torch.arange(42).reshape(6, 7) % 3


class Residual(nn.Module):
    """A sequence model whose branch is multiplied by a scale that starts at zero."""

    def __init__(self, scale: float = 0.0) -> None:
        super().__init__()
        self.lift, self.branch, self.head = nn.Linear(5, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.gate = nn.Parameter(torch.full((8,), scale))
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.lift(x).cumsum(1) / 7.0
        return self.head(h + self.gate * self.mixed(torch.tanh(self.branch(h))))

    def mixed(self, h: torch.Tensor) -> torch.Tensor:
        return h


class MixesSamples(Residual):
    def mixed(self, h: torch.Tensor) -> torch.Tensor:
        return h - h.mean(0, keepdim=True)


class DropsAlways(Residual):
    def mixed(self, h: torch.Tensor) -> torch.Tensor:
        return F.dropout(h, 0.3)


class ReadsAhead(Residual):
    def mixed(self, h: torch.Tensor) -> torch.Tensor:
        return h.flip(1).cumsum(1).flip(1)


class ReadsBack(Residual):
    def mixed(self, h: torch.Tensor) -> torch.Tensor:
        return h.cumsum(1)


class Normed(Residual):
    def mixed(self, h: torch.Tensor) -> torch.Tensor:
        return F.dropout(self.norm(h.mT).mT, 0.1, self.training)


class ZeroHead(Residual):
    def __init__(self) -> None:
        super().__init__(1.0)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)


class ZeroHeadMixes(ZeroHead):
    def mixed(self, h: torch.Tensor) -> torch.Tensor:
        return h / (1.0 + h.square().mean(0, keepdim=True))


def told(model: Any, check: str) -> list[Finding]:
    """Return what one check finds of a model that promises to be causal."""
    torch.manual_seed(0)
    contract = Contract(
        model=model,
        batch=((X,), Y),
        loss=lambda o, y: F.cross_entropy(o.flatten(0, 1), y.flatten()),
        promises=[promises.Causal()],
    )
    findings = contract.check(checks=[check]).findings
    return [f for f in findings if f.status in ("violated", "suspicious", "error")]


@pytest.mark.parametrize(
    ("model", "check", "code"),
    [
        (MixesSamples, "batch-independence", "samples-mixed"),
        (ZeroHeadMixes, "batch-independence", "samples-mixed"),
        (DropsAlways, "eval-determinism", "random-in-eval"),
        (ReadsAhead, "causality", "future-leak"),
    ],
)
def test_what_a_zero_hides_is_found(model: Any, check: str, code: str) -> None:
    (finding,) = told(model, check)
    assert (finding.status, finding.code) == ("violated", code)
    assert "start" in finding.because
    assert finding.location is not None
    assert finding.location.function.endswith("mixed")


@pytest.mark.parametrize("check", ["batch-independence", "eval-determinism", "causality"])
@pytest.mark.parametrize("model", [ReadsBack, ZeroHead, Residual])
def test_a_sound_model_with_zeros_passes(model: Any, check: str) -> None:
    assert told(model, check) == []


@pytest.mark.parametrize("check", ["batch-independence", "eval-determinism"])
def test_statistics_behind_a_zero_are_of_their_mode(check: str) -> None:
    assert told(Normed, check) == []


def test_the_model_keeps_its_zeros() -> None:
    model = MixesSamples()
    told(model, "batch-independence")
    assert not model.gate.any()
