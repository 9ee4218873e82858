"""Measure what a contract's step costs: memory, its growth, savings, the batch that fits."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..probes.holding.leaks import Leak, find_leak
    from ..probes.memory import Holding, MemoryProfile
    from ..probes.memory.fake import Unmeasurable
    from .budget import LargestBatch, OutOfMemory, assert_fits, largest_batch
    from .growth import Growth, measure_growth
    from .memory import measure_memory
    from .savings import assert_saves

_HOME = {
    "Growth": ".growth",
    "Holding": "..probes.memory",
    "LargestBatch": ".budget",
    "Leak": "..probes.holding.leaks",
    "MemoryProfile": "..probes.memory",
    "OutOfMemory": ".budget",
    "Unmeasurable": "..probes.memory.fake",
    "assert_fits": ".budget",
    "assert_saves": ".savings",
    "find_leak": "..probes.holding.leaks",
    "largest_batch": ".budget",
    "measure_growth": ".growth",
    "measure_memory": ".memory",
}

__all__ = [
    "Growth",
    "Holding",
    "LargestBatch",
    "Leak",
    "MemoryProfile",
    "OutOfMemory",
    "Unmeasurable",
    "assert_fits",
    "assert_saves",
    "find_leak",
    "largest_batch",
    "measure_growth",
    "measure_memory",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(import_module(_HOME[name], __name__), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
