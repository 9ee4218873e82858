"""What else holds, declared: small frozen values, each checked by a check of its own.

A project adds its own by subclassing :class:`Promise` and writing :meth:`Promise.verify`.
"""

from __future__ import annotations

from typing import Any

from ..text.wording import unknown
from .base import Promise
from .base import PromiseError as PromiseError
from .outputs import (
    Causal,
    Deterministic,
    Loads,
    Matches,
    PaddingInvariant,
    PermutationEquivariant,
    PermutationInvariant,
    RandomAugmentation,
    Stochastic,
)
from .parameters import Frozen, MayChange, MayLackGradient, Replicated, Tied, Trainable
from .running import CapturesGraph, Checkpoints, FullyShards, SharesData
from .training import (
    Accumulates,
    AllowsTF32,
    Autocasts,
    ClipsGradients,
    Differentiable,
    MovingAverage,
    Schedule,
    SkipsNonFinite,
    StraightThrough,
    TwiceDifferentiable,
)

__all__ = [
    "Accumulates",
    "AllowsTF32",
    "Autocasts",
    "CapturesGraph",
    "Causal",
    "Checkpoints",
    "ClipsGradients",
    "Deterministic",
    "Differentiable",
    "Frozen",
    "FullyShards",
    "Loads",
    "Matches",
    "MayChange",
    "MayLackGradient",
    "MovingAverage",
    "PaddingInvariant",
    "PermutationEquivariant",
    "PermutationInvariant",
    "Promise",
    "RandomAugmentation",
    "Replicated",
    "Schedule",
    "SharesData",
    "SkipsNonFinite",
    "Stochastic",
    "StraightThrough",
    "Tied",
    "Trainable",
    "TwiceDifferentiable",
]


def __getattr__(name: str) -> Any:
    if name.startswith("_"):  # Python itself looks for what need not be there
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    raise AttributeError(unknown("pytest_torchcheck.promises", name, __all__))
