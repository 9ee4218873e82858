"""The pytest11 entry ``torchcheck``: registers what follows, decides nothing, imports no torch.

A run pays for what it uses: the table of settings always; the markers and fixtures once there is a file
to collect; what watches and reports once a test asks for a device, something imports torch, or a
setting is given.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from . import marker_help, options
from .parts import TorchcheckWarning, activate, load, part

__all__ = ["TorchcheckWarning"]

_TASK = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare every setting."""
    options.add(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Give a worker of xdist its GPU and its cores, before any conftest can start CUDA; note what conftests read."""
    if options.asked_early(early_config, "cached"):
        part("cached").watch(early_config)
    if "TORCHCHECK_SLOT" in os.environ:
        part("workers").settle()


@pytest.hookimpl(hookwrapper=True)
def pytest_cmdline_main(config: pytest.Config) -> Any:
    """Prepare a process that was started for one test."""
    if "TORCHCHECK_TASK" in os.environ:
        part("tasks").enter(config)
        config.stash[_TASK] = True
    yield


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Settle the settings and declare the markers; load the parts where they are used."""
    settings = config.stash[options.KEY] = options.build(config)
    for line in marker_help.marker_lines(settings):
        config.addinivalue_line("markers", line)
    if settings.used or getattr(config.option, "tx", None) or _TASK in config.stash:
        load(config)
        activate(config)


def pytest_collect_file(parent: pytest.Collector) -> None:
    """Load what collects, before the first file is collected."""
    load(parent.config)
