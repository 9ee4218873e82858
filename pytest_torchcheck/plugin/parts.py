"""The parts of the plugin by name, each loaded where a run first uses it; and the class of its warnings."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

import pytest


class TorchcheckWarning(pytest.PytestWarning):
    """Likely a mistake, though a correct model might show it too; ``-W`` and ``filterwarnings`` decide."""

    __module__ = "pytest_torchcheck.plugin"  # what filters name


_PREPARING: Final = ("markers", "fixtures", "declared")
_WATCHING: Final = (
    "collection",
    "collection.models",
    "versions.against",
    "versions.records",
    "versions.benchmarks",
    "alone",
    "devices",
    "reporting",
    "known",
    "cached",
    "coverage",
    "workers",
)
_LOADED: Final = pytest.StashKey[bool]()
_ACTIVE: Final = pytest.StashKey[bool]()


def part(name: str) -> Any:
    """Import one part."""
    return import_module(f"{__package__}.{name}")


def load(config: pytest.Config) -> None:
    """Register what prepares tests while they are collected."""
    if _LOADED in config.stash:
        return
    config.stash[_LOADED] = True
    for name in _PREPARING:
        part(name).register(config)


def activate(config: pytest.Config) -> None:
    """Register what watches tests and reports on them: once something uses torch, or asks for a device."""
    if _ACTIVE in config.stash:
        return
    config.stash[_ACTIVE] = True
    for name in _WATCHING:
        part(name).register(config)
