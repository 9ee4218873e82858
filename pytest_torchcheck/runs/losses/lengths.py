"""By how much parameters move where the slope of a loss is measured."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from .followed import EXACT, ROUNDED

if TYPE_CHECKING:
    from ...subject import Subject

_STEEP, _STEEP_ROUNDED = 1e-3, 3.0
"""Times the loss: such a slope stands out of the rounding at the smallest of the steps, which then comes first."""
SHORT, STEEP_SHORT = 1e-7, 1e-2
"""A step that meets few kinks, and times the loss, the slope that stands out of the rounding at it."""
STEEPEST = 10.0
"""Times the loss: deep nets of norms can be so steep that a change of 1e-6 of the loss takes a shorter step."""
_SHORTEST = 1e-11  # what is added to a parameter is rounded too


def steps_of(narrow: bool, promised: float, loss: float) -> tuple[float, ...]:
    """Return the steps in the order in which they are taken."""
    if not narrow and promised > STEEPEST * abs(loss):
        step = max(SHORT * STEEPEST * abs(loss) / promised, _SHORTEST)
        return step, 10 * step
    steps = ROUNDED if narrow else EXACT
    steep = promised >= (_STEEP_ROUNDED if narrow else _STEEP) * abs(loss)
    return tuple(sorted(steps)) if steep else steps


def is_steep(subject: Subject) -> bool:
    """Say whether the gradients of the first step are known, and so large that those of float32 are not exact enough."""
    known = subject.cache.get(("gradients", 0, 0, None, True))
    if known is None or not math.isfinite(known.loss):
        return False
    sizes = {n: torch.linalg.vector_norm(p.detach()) for n, p in subject.named_parameters().items()}
    promised = sum(float(sizes[n]) * stat.norm for n, stat in known.stats.items() if n in sizes)
    return bool(promised > STEEPEST * abs(known.loss))
