"""An average of weights of which each update leaves next to nothing of what it averaged before."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

_MOST = 0.2
"""Averages keep half of their value and more in an update; a swapped decay of 0.8 leaves a fifth."""
_LEAST = 5e-4
"""What remains of less is no different from what rounding leaves of a copy."""
_ALIKE = 0.1
"""A decay that warms up changes by more than this part of itself from one of the first updates to the next."""
_OFF = 0.05
"""How far an update may depart from a straight way to the weights, as a part of what it leaves."""


def kept_share(states: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> float | None:
    """Return which part of its value an average keeps in each update after the first, where that is next to nothing.

    None where updates keep more or all of it, unlike parts, or where the copy is not moved straight to the weights.
    A copy that is equal to them after an update is no average.

    Args:
        states: The average and the weights before the first step and after each one.
    """
    kept: list[float] = []
    for (old, _), (new, source) in itertools.pairwise(states[1:]):
        gap, left = (old - source).flatten(), (new - source).flatten()
        size = float(gap.norm())
        if not size:
            return None
        share = float(left @ gap) / size**2
        if not _LEAST < share < _MOST or float((left - share * gap).norm()) > _OFF * share * size:
            return None
        kept.append(share)
    alike = len(kept) > 1 and max(kept) - min(kept) < _ALIKE * min(kept)
    return max(kept) if alike else None
