"""Fixtures for tests that run pytest: contracts to run, and devices that obey their test."""

from __future__ import annotations

import json
import os
import textwrap
from pathlib import Path
from typing import Any

import pytest

SIMULATION = Path(__file__).parent / "plugin" / "simulated_devices.py"

MODELS = """
    import torch
    import torch.nn.functional as F
    from torch import nn
    from pytest_torchcheck import Contract, Labels, contract

    FIELDS = dict(inputs="B 4", sizes={"B": (2, 8)}, targets=Labels("B", classes=3), loss=F.cross_entropy)

    class Net(nn.Module):
        def __init__(self, cut=False):
            super().__init__()
            self.first, self.last, self.cut = nn.Linear(4, 8), nn.Linear(8, 3), cut

        def forward(self, x):
            h = self.first(x).relu()
            return self.last(h.detach() if self.cut else h)
"""
"""A sound model and one whose graph is cut, for tests that run contracts."""


@pytest.fixture(scope="session")
def loaded() -> None:
    """Run every check once: what torch imports on the way must not be imported again by the next run."""
    import torch

    from pytest_torchcheck import Contract, Labels

    Contract(
        model=lambda: torch.nn.Linear(4, 3),
        inputs="B 4",
        targets=Labels("B", classes=3),
        loss=torch.nn.functional.cross_entropy,
    ).check()


@pytest.fixture(autouse=True)
def not_a_worker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the pytest that a test runs be no worker, also where the test itself runs on one.

    It rewrites no assertions and does not collect garbage at its end: with torch imported that takes half of a short run.
    """
    if "pytester" in request.fixturenames:
        for name in [name for name in os.environ if name.startswith("PYTEST_XDIST_")]:
            monkeypatch.delenv(name)
        request.getfixturevalue("pytester")  # which drops what is set
        monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:unraisableexception")


@pytest.fixture
def simulate(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Put simulated devices into every run: ``simulate(gpus=2, others_gib=12)``."""

    def put(**settings: Any) -> None:
        monkeypatch.setenv("SIMULATED", json.dumps(settings))
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        monkeypatch.delenv("TORCHCHECK_REQUIRE", raising=False)
        pytester.makepyfile(simulated_devices=SIMULATION.read_text())
        pytester.syspathinsert()
        pytester.makeini("[pytest]\naddopts = -p simulated_devices\n")

    return put


@pytest.fixture
def models(pytester: pytest.Pytester, loaded: None) -> Any:
    """Write a test module of contracts: ``models("@contract(**FIELDS)\\ndef good(): return Net()")``."""

    def put(body: str, name: str = "test_models") -> Path:
        text = textwrap.dedent(MODELS) + "\n" + textwrap.dedent(body)
        return pytester.makepyfile(**{name: text})

    return put
