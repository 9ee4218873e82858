"""Healthy small models pass from any seed: two of each here, fifty in the environment ``models``."""

from __future__ import annotations

import pytest

from tests.soundness.healthy import HEALTHY, alarms


@pytest.mark.parametrize("seed", [3, 17])
@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_model_passes(name: str, seed: int) -> None:
    wrong, held = alarms(name, seed)
    assert not wrong, "\n\n".join(str(f) for f in wrong)
    assert held >= 20
