"""Healthy small models, fifty seeds each, over the whole catalogue with overfit."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.soundness.healthy import HEALTHY, alarms

SEEDS = 50


@pytest.mark.parametrize("name", HEALTHY)
def test_fifty_of_fifty(name: str) -> None:
    failed: dict[int, list[str]] = {}
    held: Counter[int] = Counter()
    for seed in range(SEEDS):
        wrong, passed = alarms(name, seed)
        held[passed] += 1
        if wrong:
            failed[seed] = [f"{f.check}/{f.code}: {f.summary}" for f in wrong]
    print(f"\n{name}: {SEEDS - len(failed)} of {SEEDS} seeds pass; checks passed: {dict(held)}")
    assert not failed, failed
    assert min(held) >= 20
