"""What torch must be imported for here is said in ``tests/plugin/conftest.py``."""

from __future__ import annotations

import hypothesis  # noqa: F401
import pytest
import torch

import pytest_torchcheck.assertions
import pytest_torchcheck.strategies  # noqa: F401

torch.set_num_threads(1)


@pytest.fixture
def in_order(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs inside the test keep the order of the file: what is awaited of an order is another plugin's to shuffle."""
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:randomly")
