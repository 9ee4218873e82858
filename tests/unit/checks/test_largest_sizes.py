"""What fails only beyond some size is found at the largest declared one, and costs a pair of forwards of one sample."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from pytest_torchcheck import Contract, Floats, Mask
from pytest_torchcheck.promises import (
    Causal,
    PaddingInvariant,
    PermutationEquivariant,
    PermutationInvariant,
)
from pytest_torchcheck.runs.variants.largest import entries_apart


def told(contract: Contract, check: str) -> list[tuple[str, str]]:
    report = contract.check(check)
    assert not list(report.with_status("error")), str(report)
    return [(f.status, f.code) for f in report.findings if f.status in ("violated", "suspicious")]


SHAPES: list[tuple[int, ...]] = []


class _Base(nn.Module):
    limit: int | None = 22

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 9), nn.Tanh(), nn.Linear(9, 4))

    def forward(self, x: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
        SHAPES.append(tuple(x.shape))
        long = self.limit is not None and x.shape[0 if x.dim() == 2 else 1] > self.limit
        return self.of(x, *more, long=long)


class _Samples(_Base):
    """A table of places of so many samples: those beyond it are taken for the last one."""

    def of(self, x: torch.Tensor, *, long: bool) -> torch.Tensor:
        if not long:
            return self.body(x)
        return self.body(x)[torch.arange(len(x)).clamp(max=self.limit)]


class _Halves(_Base):
    """Sound: large batches go through in pieces, the last of them shorter."""

    def of(self, x: torch.Tensor, *, long: bool) -> torch.Tensor:
        return torch.cat([self.body(part) for part in x.split(16)]) if long else self.body(x)


class _Past(_Base):
    """A mean of the past; long sequences are smoothed by one of their neighbours on both sides."""

    def of(self, x: torch.Tensor, *, long: bool) -> torch.Tensor:
        h = self.body(x)
        if long:
            return nn.functional.avg_pool1d(h.mT, 3, 1, 1).mT
        return h.cumsum(1) / torch.arange(1, x.shape[1] + 1)[:, None]


class _Mean(_Base):
    """A mean of what is no padding; of long sequences, of all that stands there."""

    def of(self, x: torch.Tensor, mask: torch.Tensor, *, long: bool) -> torch.Tensor:
        h, seen = self.body(x), mask[..., None].to(x)
        return h.mean(1) if long else (h * seen).sum(1) / seen.sum(1).clamp(min=1)


class _Set(_Base):
    """A sum of a set; of large ones, of the first so many."""

    def of(self, x: torch.Tensor, *, long: bool) -> torch.Tensor:
        return self.body(x[:, : self.limit] if long else x).sum(1)


def contract(model: type[_Base], high: int, **options: Any) -> Contract:
    shape = "B 5" if issubclass(model, (_Samples, _Halves)) else "B T 5"
    sizes = {"B": (1, high)} if shape == "B 5" else {"T": (2, high)}
    inputs: Any = Floats(shape)
    if issubclass(model, _Mean):
        inputs = (inputs, Mask("B T"))
    return Contract(model=model, inputs=inputs, sizes=sizes, **options)


CASES = [
    (_Samples, (), "batch-sizes", "batch-size-dependent"),
    (_Past, (Causal(),), "causality", "future-leak"),
    (_Mean, (PaddingInvariant(ids=0, mask=1),), "padding-invariance", "padding-leak"),
    (_Set, (PermutationInvariant(dim=1),), "permutation-invariance", "order-dependent"),
]


@pytest.mark.parametrize(("model", "promised", "check", "code"), CASES, ids=[c[3] for c in CASES])
def test_a_relation_holds_up_to_the_largest_size(
    model: type[_Base], promised: tuple[Any, ...], check: str, code: str
) -> None:
    made = contract(model, 40, promises=promised)
    report = made.check(check)
    assert [(f.status, f.code) for f in report.causes] == [("violated", code)], str(report)
    assert ("from 24 samples on" if check == "batch-sizes" else "T=") in str(report)
    assert told(contract(model, 12, promises=promised), check) == []
    sound = type("Sound", (model,), {"limit": None})
    assert told(contract(sound, 40, promises=promised), check) == []


def test_large_batches_in_pieces_are_sound() -> None:
    assert told(contract(_Halves, 40), "batch-sizes") == []


def test_samples_that_are_meant_to_meet_are_not_asked_of_in_large_batches() -> None:
    why = {"batch-independence": "a limit on what each expert takes"}
    assert told(contract(_Samples, 40, skip=why), "batch-sizes") == []


def test_entries_of_a_set_that_are_there_twice_are_told_apart() -> None:
    generator = torch.Generator().manual_seed(0)
    first = torch.randn(2, 5, 3, generator=generator)
    twice = torch.cat([first, first[:, :2]], 1)
    apart = entries_apart(twice, 1, generator)
    assert torch.equal(apart[:, :5], first)
    assert len(torch.unique(apart[0], dim=0)) == 7
    assert (apart[:, 5:] - first[:, :2]).abs().max() < 0.1 * first.abs().max()
    assert torch.equal(entries_apart(twice.long(), 1, generator), twice.long())


class _Ranks(nn.Module):
    """Numbers the entries of a set; of large ones, their sum loses digits in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        score = self.body(x)
        ranks = score.argsort(dim=1, stable=True).argsort(dim=1).to(x)
        far = 1e5 if x.shape[1] > 9 else 0.0
        total = sum((x[..., :1] + far).split(1, 1))
        return ranks + total - far * x.shape[1]


def test_entries_are_told_apart_in_float64_too() -> None:
    """Equal entries are ranked by their places; float64, asked because float32 differs, must not meet any."""
    real = torch.randn(2, 6, 3, generator=torch.Generator().manual_seed(0))
    promise = PermutationEquivariant(dim=1)
    options: dict[str, Any] = {"sizes": {"N": (2, 24)}, "promises": (promise,)}
    made = Contract(model=_Ranks, inputs=Floats("B N 3"), batch=(real,), **options)
    assert told(made, "permutation-equivariance") == []


def test_what_a_passing_promise_costs() -> None:
    sound = type("Sound", (_Past,), {"limit": None})
    SHAPES.clear()
    assert contract(sound, 40, promises=(Causal(),)).check("causality").ok
    assert [shape for shape in SHAPES if shape[1] == 40] == [(1, 40, 5)] * 3


class _Square(nn.Module):
    """Takes a square of numbers for a table of pairs, and reads it the other way round."""

    def __init__(self, square: bool) -> None:
        super().__init__()
        self.body, self.square = nn.Linear(7, 3), square

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.square and x.shape[0] == x.shape[1]:
            x = x.mT
        return self.body(x)


class _Gated(nn.Module):
    """Weighs the steps of a sequence; a sequence of one step loses its dimension on the way."""

    def __init__(self, dim: int | None) -> None:
        super().__init__()
        self.body, self.gate, self.dim = nn.Linear(5, 3), nn.Linear(5, 1), dim

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.gate(x)
        scores = scores.squeeze(-1) if self.dim is None else scores.squeeze()
        weights = scores.softmax(-1).reshape(len(x), -1, 1)
        return (weights * self.body(x)).sum(1)


@pytest.mark.parametrize("wrong", [True, False])
def test_as_many_samples_as_another_dimension_has_entries(wrong: bool) -> None:
    made = Contract(model=lambda: _Square(wrong), inputs=Floats("B 7"), sizes={"B": (1, 9)})
    report = made.check("batch-sizes")
    assert [f.code for f in report.causes] == ["batch-size-dependent"] * wrong, str(report)
    assert ("among 7 samples only" in str(report)) == wrong


@pytest.mark.parametrize("dim", [None, -1])
def test_samples_that_meet_at_the_smallest_size_only(dim: int | None) -> None:
    made = Contract(model=lambda: _Gated(dim), inputs=Floats("B T 5"), sizes={"T": (1, 9)})
    report = made.check("batch-sizes")
    assert [f.code for f in report.causes] == ["samples-mixed"] * (dim is not None), str(report)
    assert dim is None or (report.causes[0].location.text.startswith("weights = "))
