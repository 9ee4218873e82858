"""The pytest11 entry ``torchcheck``: registers what follows, decides nothing, imports no torch.

A run pays for what it uses: the table of settings always; the markers and fixtures once there is a file
to collect; what watches and reports once a test asks for a device, something imports torch, or a
setting is given.
"""

from __future__ import annotations

import os
from typing import Any

import pytest


class TorchcheckWarning(pytest.PytestWarning):
    """Likely a mistake, though a correct model might show it too; ``-W`` and ``filterwarnings`` decide."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare every setting."""
    from . import options

    options.add(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Give a worker of xdist its GPU and its cores, before any conftest can start CUDA."""
    if "TORCHCHECK_SLOT" in os.environ:
        from . import workers

        workers.settle()


@pytest.hookimpl(hookwrapper=True)
def pytest_cmdline_main(config: pytest.Config) -> Any:
    """Prepare a process that was started for one test."""
    if "TORCHCHECK_TASK" in os.environ:
        from . import isolation

        isolation.enter(config)
        config.stash[_TASK] = True
    yield


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Settle the settings and declare the markers; load the parts where they are used."""
    from . import options

    settings = config.stash[options.KEY] = options.build(config)
    for line in options.marker_lines(settings):
        config.addinivalue_line("markers", line)
    if settings.used or getattr(config.option, "tx", None) or _TASK in config.stash:
        _load(config)
        activate(config)


def pytest_collect_file(parent: pytest.Collector) -> None:
    """Load what collects, before the first file is collected."""
    _load(parent.config)


_TASK = pytest.StashKey[bool]()
_LOADED = pytest.StashKey[bool]()
_ACTIVE = pytest.StashKey[bool]()


def _load(config: pytest.Config) -> None:
    """Register what prepares tests while they are collected."""
    if _LOADED in config.stash:
        return
    config.stash[_LOADED] = True
    from . import fixtures, markers

    markers.register(config)
    fixtures.register(config)


def activate(config: pytest.Config) -> None:
    """Register what watches tests and reports on them: once something uses torch, or asks for a device."""
    if _ACTIVE in config.stash:
        return
    config.stash[_ACTIVE] = True
    from . import collection, coverage, devices, isolation, reporting, workers

    for part in (collection, isolation, devices, reporting, coverage, workers):
        part.register(config)
