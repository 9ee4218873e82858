"""Ratios of times: what is slower fails, what is equal does not, and noise decides nothing."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from pytest_torchcheck import Contract, DeclarationError, Faster, SlowerBy
from pytest_torchcheck.measure import repeated

if TYPE_CHECKING:
    from collections.abc import Callable


class Rolls(nn.Module):
    """Repeated work in proportion to a count."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.count):
            x = (x * self.scale).roll(1, -1).tanh()
        return x


def rolls(count: int, **speed: Any) -> Contract:
    return Contract(
        model=lambda: Rolls(count), inputs="B 512", sizes={"B": 32},
        speed={name.replace("_", "-"): ratio for name, ratio in speed.items()},
    )  # fmt: skip


def test_twice_the_work_is_too_slow_and_says_how_much() -> None:
    report = rolls(24, inference=SlowerBy(than=lambda: Rolls(12), at_most=1.2)).check("speed")
    (finding,) = report.findings
    assert (finding.status, finding.code) == ("violated", "too-slow")
    assert finding.evidence["low"] > 1.2  # type: ignore[operator]
    assert finding.location is not None
    assert "x * self.scale" in finding.location.text
    assert "% of the kernels' time is on this line" in finding.because


def test_half_the_work_is_faster_and_equal_work_is_not() -> None:
    half = rolls(10, forward=Faster(than=lambda: Rolls(20), by=1.2)).check("speed")
    assert [f.status for f in half.findings] == ["passed"]
    equal = rolls(10, forward=Faster(than=lambda: Rolls(10), by=1.5)).check("speed")
    assert [f.code for f in equal.findings] == ["too-slow"]


def test_a_step_is_compared_and_the_model_is_left_as_it_was() -> None:
    model = Rolls(8)
    contract = Contract(
        model=model, inputs="B 64", speed={"training-step": SlowerBy(than=Rolls(8), at_most=3.0)}
    )
    before = model.scale.detach().clone()
    assert [f.status for f in contract.check("speed").findings] == ["passed"]
    assert torch.equal(model.scale, before)


class Clock:
    """Time that passes only by work, each stretch of it disturbed."""

    def __init__(self, seed: int, noise: float) -> None:
        self.now, self.chance, self.noise = 0.0, random.Random(seed), noise

    def work(self, seconds: float) -> Callable[[], None]:
        def run() -> None:
            self.now += seconds * (1 + self.noise * self.chance.expovariate(1.0))

        return run


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, float], Clock]:
    def make(seed: int, noise: float) -> Clock:
        made = Clock(seed, noise)
        monkeypatch.setattr(time, "perf_counter", lambda: made.now)
        # a collection takes none of this time, and all of the test's
        monkeypatch.setattr(repeated.gc, "collect", lambda: 0)
        return made

    return make


def test_equal_work_is_never_found_slower_and_slower_work_always(
    clock: Callable[[int, float], Clock],
) -> None:
    for seed in range(40):
        for factor, allowed in ((1.0, {True, None}), (1.2, {False})):
            made = clock(seed, 0.5)
            one, two = made.work(factor * 0.002), made.work(0.002)
            assert repeated.compare(one, two, 1.05, seed=seed).within(1.05) in allowed


def test_a_ratio_at_the_limit_stays_undecided(clock: Callable[[int, float], Clock]) -> None:
    undecided = 0
    for seed in range(20):
        made = clock(seed, 0.5)
        found = repeated.compare(made.work(0.00105), made.work(0.001), 1.05, seconds=5, seed=seed)
        undecided += found.within(1.05) is None
        assert made.now < 6
    assert undecided >= 19


def test_what_noise_decides_is_inconclusive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "pytest_torchcheck.checks.machines.speed.compare",
        lambda *_, **__: repeated.Paired(
            ratio=1.0, low=0.9, high=1.1, pairs=40, first_s=1.0, second_s=1.0
        ),
    )
    (finding,) = rolls(2, forward=SlowerBy(than=lambda: Rolls(2))).check("speed").findings
    assert (finding.status, finding.code) == ("inconclusive", "too-noisy")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ([], "must map what is timed"),
        ({"froward": SlowerBy(than=nn.Identity)}, "forward"),
        ({"forward": 1.3}, "allowed are Faster"),
    ],
)
def test_a_wrong_declaration_says_what_is_allowed(given: Any, told: str) -> None:
    with pytest.raises(DeclarationError, match=told):
        Contract(model=nn.Identity, inputs="B 5", speed=given)


def test_a_wrong_ratio_says_what_is_allowed() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Faster(than=nn.Identity, by=0.5)
    with pytest.raises(ValueError, match="ratio above 0"):
        SlowerBy(than=nn.Identity, at_most=0)
    with pytest.raises(ValueError, match="factory"):
        SlowerBy(than="Old")  # type: ignore[arg-type]
