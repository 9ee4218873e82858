"""Adapters: what a framework already says of a model, so that its contract need not.

An adapter recognises a model by its class, or by its batch, without importing the framework: what
is not imported yet cannot have made the model. It fills in what the contract does not declare. This
package's own adapters, and those of third parties, are entry points of the group
`pytest_torchcheck.adapters`.
"""

from __future__ import annotations

import functools
import warnings
from importlib import import_module
from importlib.metadata import entry_points
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
"""Those of this package, known also where it is not installed; an entry point of the same name takes the place of one."""


@functools.cache
def adapters() -> Mapping[str, Adapter]:
    """Return every adapter by its name: those of third parties first, in the order of their names.

    One that cannot be loaded is left out with a warning, so that it breaks no contract of another
    framework.
    """
    found_elsewhere = {
        found.name: found.value
        for found in entry_points(group=GROUP)
        if BUILT_IN.get(found.name) != found.value
    }
    places = {**BUILT_IN, **found_elsewhere}
    others = sorted(found_elsewhere)
    made: dict[str, Adapter] = {}
    for name in (*others, *(name for name in BUILT_IN if name not in others)):
        place = places[name]
        try:
            adapter = _load(place)
        except Exception as error:  # a third party's import may raise anything
            warnings.warn(
                f"pytest-torchcheck: the adapter {name!r} ({place}) cannot be loaded: "
                f"{type(error).__name__}: {error}",
                stacklevel=2,
            )
            continue
        made[name] = adapter
    return made


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
    for name, adapter in adapters().items():
        if adapter.recognises(declared):
            return adapter.adapt(declared).named(name)
    return None
