"""A part that is linear in both modes, by the same parameters, is one map; other differences between modes may be meant."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract

X = torch.randn(8, 6, generator=torch.Generator().manual_seed(0))
Y = torch.arange(8) % 3


class Adapted(nn.Module):
    """Adds a product of two small matrices to a frozen layer: as two calls in training, folded in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(6, 10).requires_grad_(False)
        self.down, self.up = nn.Linear(6, 3, bias=False), nn.Linear(3, 10)
        self.size = 2.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            return self.trained(x)
        weight = self.base.weight + self.size * self.up.weight @ self.down.weight
        return F.linear(x, weight, self.bias())

    def trained(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.size * self.up(self.down(x))

    def bias(self) -> torch.Tensor:
        return self.base.bias + self.size * self.up.bias


class ScaledTwice(Adapted):
    def trained(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.size * self.up(self.size * self.down(x))


class ForgetsTheFactor(Adapted):
    def bias(self) -> torch.Tensor:
        return self.base.bias + self.up.bias  # HERE


class Scores(nn.Module):
    """Scales its scores in training alone: evaluation ranks by them."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * (4.0 if self.training else 1.0)


class Rounded(Adapted):
    """Evaluates with weights of eight bits."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        step = self.up.weight.abs().max() / 127
        up = self.up.weight if self.training else (self.up.weight / step).round() * step
        return self.base(x) + self.size * F.linear(self.down(x), up, self.up.bias)


class Slow(nn.Module):
    """Evaluates with other weights than those that are trained."""

    def __init__(self) -> None:
        super().__init__()
        self.quick = nn.Linear(6, 10)
        self.slow = copy.deepcopy(self.quick).requires_grad_(False)
        with torch.no_grad():
            self.slow.weight.mul_(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.quick(x) if self.training else self.slow(x)


class Sharper(Adapted):
    """Is no linear map in evaluation."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.trained(x)
        return h if self.training else h.relu()


def told(part: type[nn.Module]) -> list:
    def make() -> nn.Module:
        return nn.Sequential(part(), nn.Tanh(), nn.Linear(10, 3))

    report = Contract(model=make, batch=((X,), Y), loss=F.cross_entropy).check(["mode-agreement"])
    return [f for f in report.findings if f.status in ("violated", "suspicious")]


@pytest.mark.parametrize(
    ("part", "names"),
    [
        (ScaledTwice, {"0.down.weight", "0.up.weight"}),
        (ForgetsTheFactor, {"0.up.bias"}),
    ],
)
def test_a_part_that_is_folded_into_another_map(part: type[nn.Module], names: set[str]) -> None:
    (finding,) = told(part)
    assert (finding.status, finding.code) == ("violated", "modes-differ")
    assert set(finding.evidence["parameters"]) == names
    assert {c.name for c in finding.culprits if c.kind == "parameter"} == names


def test_the_line_that_reads_it_in_evaluation_is_named() -> None:
    (finding,) = told(ForgetsTheFactor)
    assert finding.location is not None
    assert finding.location.text.endswith("# HERE")


def test_a_part_that_is_folded_rightly() -> None:
    assert told(Adapted) == []


@pytest.mark.parametrize("part", [Scores, Rounded, Slow, Sharper])
def test_what_differs_otherwise_is_no_more_than_suspicious(part: type[nn.Module]) -> None:
    assert [f.status for f in told(part)] in ([], ["suspicious"])


class Chosen(Adapted):
    """Adds the product in evaluation too, by a condition of its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.base.weight
        if not self.training:
            weight = weight + self.size * self.up.weight @ self.down.weight
        added = x.dim() > 0  # HERE
        y = F.linear(x, weight, self.base.bias)
        return y + self.size * F.linear(self.down(x), self.up.weight) if added else y


def test_what_decides_that_a_product_is_added_is_named() -> None:
    (finding,) = told(Chosen)
    assert any(
        c.location is not None and c.location.text.endswith("# HERE") for c in finding.culprits
    )
