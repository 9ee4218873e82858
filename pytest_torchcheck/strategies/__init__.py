"""Specs as Hypothesis strategies, and the search for the smallest failing batch.

``examples`` and ``minimise.minimise`` need no Hypothesis and are loaded without it: checks use them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .annotations import Signature, register, specs_from_signature
    from .drawing import batches, tensors
    from .parts import devices, dtypes, layouts, shapes
    from .sequence import examples

_HOME = {
    "batches": "drawing",
    "tensors": "drawing",
    "devices": "parts",
    "dtypes": "parts",
    "layouts": "parts",
    "shapes": "parts",
    "register": "annotations",
    "specs_from_signature": "annotations",
    "Signature": "annotations",
    "examples": "sequence",
}

__all__ = [
    "Signature", "batches", "devices", "dtypes", "examples", "layouts", "register", "shapes", "specs_from_signature",
    "tensors",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
