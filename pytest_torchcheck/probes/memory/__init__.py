"""Memory of a step: a tracker of storages, and its log as plain data."""

from __future__ import annotations

from .allocations import PHASES, OutOfBudget
from .profile import CATEGORIES, NOWHERE, Holding, MemoryProfile, Timeline
from .replay import build_profile
from .tracker import MemoryTracker

__all__ = [
    "CATEGORIES",
    "NOWHERE",
    "PHASES",
    "Holding",
    "MemoryProfile",
    "MemoryTracker",
    "OutOfBudget",
    "Timeline",
    "build_profile",
]
