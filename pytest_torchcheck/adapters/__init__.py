"""Adapters: what a framework already says of a model, so that its contract need not.

An adapter recognises a model by its class, or by its batch, without importing the framework: what
is not imported yet cannot have made the model. It fills in what the contract does not declare. This
package's own adapters, and those of third parties, are entry points of the group
`pytest_torchcheck.adapters`.
"""

from __future__ import annotations

import functools
import sys
import warnings
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from .base import (
    Adapted,
    Adapter,
    AdapterError,
    Declared,
    Loop,
    LoopUnavailableError,
    Run,
    Scheduled,
    Watch,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "GROUP", "Adapted", "Adapter", "AdapterError", "Declared", "Loop", "LoopUnavailableError", "Run", "Scheduled",
    "Watch", "adapt", "adapters",
]  # fmt: skip

GROUP: Final = "pytest_torchcheck.adapters"
BUILT_IN: Final = {
    "lightning": "pytest_torchcheck.adapters.lightning:ADAPTER",
    "transformers-trainer": "pytest_torchcheck.adapters.transformers_trainer:ADAPTER",
    "transformers": "pytest_torchcheck.adapters.transformers:ADAPTER",
    "detection": "pytest_torchcheck.adapters.detection:ADAPTER",
    "graphs": "pytest_torchcheck.adapters.graphs:ADAPTER",
}
"""Those of this package, known also where it is not installed; an entry point of one name takes its place."""


_FRAMEWORKS: Final = {
    "lightning": ("lightning", "pytorch_lightning"),
    "transformers-trainer": ("transformers",),
    "transformers": ("transformers", "peft"),
}
"""Packages without which no model is one of an adapter's: it is not imported where none is installed."""


@functools.cache
def adapters() -> Mapping[str, Adapter]:
    """Return every adapter by its name: those of third parties first, in the order of their names.

    One that cannot be loaded is left out with a warning, so that it breaks no contract of another
    framework.
    """
    made = {name: _loaded(name, place) for name, place in _places().items()}
    return {name: adapter for name, adapter in made.items() if adapter is not None}


@functools.cache
def _places() -> Mapping[str, str]:
    """Return where each adapter is, by its name, in the order in which they are asked."""
    found_elsewhere = {
        found.name: found.value
        for found in entry_points(group=GROUP)
        if BUILT_IN.get(found.name) != found.value
    }
    others = sorted(found_elsewhere)
    names = (*others, *(name for name in BUILT_IN if name not in others))
    return {name: {**BUILT_IN, **found_elsewhere}[name] for name in names}


@functools.cache
def _loaded(name: str, place: str) -> Adapter | None:
    """Return an adapter, or None with a warning where it cannot be loaded."""
    try:
        return _load(place)
    except Exception as error:  # a third party's import may raise anything
        warnings.warn(
            f"pytest-torchcheck: the adapter {name!r} ({place}) cannot be loaded: "
            f"{type(error).__name__}: {error}",
            stacklevel=2,
        )
        return None


@functools.cache
def _is_installed(package: str) -> bool:
    return package in sys.modules or find_spec(package) is not None


def _load(place: str) -> Adapter:
    module, _, attribute = place.partition(":")
    found: Any = import_module(module)
    for name in attribute.split(".") if attribute else ():
        found = getattr(found, name)
    if isinstance(found, type):
        found = found()
    if not isinstance(found, Adapter):
        raise TypeError(
            "an adapter has recognises(declared) -> bool and adapt(declared) -> Adapted"
        )
    return found


def adapt(declared: Declared) -> Adapted | None:
    """Return what the first adapter that recognises a model supplies, or None.

    Raises:
        AdapterError: The adapter recognises the model, but the declaration does not suffice for it.
    """
    for name, place in _places().items():
        needs = _FRAMEWORKS.get(name, ()) if BUILT_IN.get(name) == place else ()
        if needs and not any(map(_is_installed, needs)):
            continue
        adapter = _loaded(name, place)
        if adapter is not None and adapter.recognises(declared):
            return adapter.adapt(declared).named(name)
    return None
