"""Memory of a step: a tracker of storages, and its log as plain data."""

from __future__ import annotations

from .profile import CATEGORIES, NOWHERE, Holding, MemoryProfile, Timeline, build_profile
from .tracker import PHASES, MemoryTracker, OutOfBudget

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
