"""Import the whole package once: what a process forked from this one, or a run of pytest in it, need not import again.

A run of pytest in the process of a test forgets whatever it has imported, and the next one imports that again.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module

import pytest_torchcheck

for module in pkgutil.walk_packages(pytest_torchcheck.__path__, "pytest_torchcheck."):
    if not module.name.startswith("pytest_torchcheck.adapters.") and not module.name.endswith("__"):
        import_module(module.name)
