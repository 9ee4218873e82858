"""What the slopes of a loss along its gradient show, beside what the gradient says."""

from __future__ import annotations

import math
from dataclasses import field
from typing import TYPE_CHECKING

import torch

from ...lean import dataclass
from ...objects import trees

if TYPE_CHECKING:
    from ...subject import Subject

FIRST = 1e-5
"""Relative step of every parameter up to which the curvature is far below the tolerance."""
EXACT = (FIRST, 1e-3, 1e-6)
"""The steps, in this order: casts to float32 within the model need a larger, curvature a smaller one."""
ROUNDED = (1e-3, 3e-4, 3e-3)
"""The steps where the loss itself comes out in float32, as of logits that a model casts."""
CLOSE, CLOSE_ROUNDED = 1e-4, 1e-3
"""A ratio that misses 1 by no more holds: in float64; at the largest step."""
APART = 3e-4
"""A ratio that misses 1 by more, at two steps alike, does not."""
SURE = 0.01
"""Below it, what misses 1 and is not explained may be rounding within the model."""
_ALIKE = 0.1  # of the distance to 1: by so much may the ratios of two steps differ
_ONE_SIDED = (
    0.5  # of what is missing: by so much may the slopes of both sides differ; else there is a kink
)
_MANY = (
    20 * CLOSE
)  # of the slope: so much between both sides is too much at a tenth of the step, too
_STEEP, _STEEP_ROUNDED = 1e-3, 3.0
"""Times the loss: such a slope stands out of the rounding at the smallest of the steps, which then comes first."""
SHORT, STEEP_SHORT = 1e-7, 1e-2
"""A step that meets few kinks, and times the loss, the slope that stands out of the rounding at it."""
STEEPEST = 10.0
"""Times the loss: deep nets of norms can be so steep that a change of 1e-6 of the loss takes a shorter step."""
_SHORTEST = 1e-11  # what is added to a parameter is rounded too


@dataclass(frozen=True, slots=True, kw_only=True)
class Slope:
    """The loss at one step to both sides.

    Attributes:
        step: By what share of its own size each parameter moves.
        ahead: Slope of the loss along the gradient, from the point on.
        behind: Slope up to the point.
    """

    step: float
    ahead: float
    behind: float

    @property
    def middle(self) -> float:
        """Slope from both sides, with an error of the second order."""
        return (self.ahead + self.behind) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Descent:
    """What the gradient says of the loss, and what the loss does.

    Attributes:
        loss: At the point where the gradient was taken.
        promised: The slope that the gradient says.
        slopes: The measured ones, the first step first.
        refused: Why nothing was measured, or empty.
        nodes: Names of the custom autograd Functions in the graph.
        casts: Whether the graph may round to float32 on its way: a cast, or a custom Function.
        narrow: Whether the loss comes out in float32.
        random: Whether the forward draws random numbers; only asked where the first slope misses.
        steady: Whether a second evaluation gives the same loss; only asked where the slopes miss.
        wrong: By the name of a parameter, its measured slope as a share of what its gradient says;
            only of those that miss.
    """

    loss: float = math.nan
    promised: float = 0.0
    slopes: tuple[Slope, ...] = ()
    refused: str = ""
    nodes: tuple[str, ...] = ()
    casts: bool = False
    narrow: bool = False
    random: bool = False
    steady: bool = True
    wrong: dict[str, float] = field(default_factory=dict)

    def ratio(self, slope: Slope) -> float:
        """Return a measured slope as a share of the promised one."""
        return slope.middle / self.promised

    @property
    def compared(self) -> tuple[Slope, Slope]:
        """The first step and the smallest other one; the first twice where there is no other."""
        return self.slopes[0], min(self.slopes[1:] or self.slopes, key=lambda slope: slope.step)

    @property
    def holds(self) -> bool:
        """Say whether some step shows the promised slope."""
        near = any(abs(self.ratio(s) - 1) <= CLOSE for s in self.slopes if s.step <= FIRST)
        far = any(abs(self.ratio(s) - 1) <= CLOSE_ROUNDED for s in self.slopes if s.step > FIRST)
        # where the loss is rounded, what misses by less could not be told from it
        rounded = self.narrow and abs(self.ratio(self.slopes[0]) - 1) < SURE
        return near or rounded or (far and self.measured is None)

    @property
    def kinked(self) -> bool:
        """Say whether kinks explain what the first step misses, too many for a smaller one to show the slope."""
        first = self.slopes[0]
        gap = abs(first.ahead - first.behind) / self.promised
        return gap > max(_ONE_SIDED * abs(self.ratio(first) - 1), _MANY)

    @property
    def measured(self) -> float | None:
        """The share of the promised slope, where two steps agree that it is not 1; or None."""
        first, again = self.compared
        missing = abs(self.ratio(first) - 1)
        if first is again or missing < (SURE if self.narrow else APART):
            return None
        small = min(first, again, key=lambda slope: slope.step)
        if abs(small.ahead - small.behind) > _ONE_SIDED * missing * self.promised:
            return None  # a kink
        ratio = self.ratio(first)
        return ratio if abs(ratio - self.ratio(again)) <= _ALIKE * missing else None


def steps_of(narrow: bool, promised: float, loss: float) -> tuple[float, ...]:
    """Return the steps in the order in which they are taken."""
    if not narrow and promised > STEEPEST * abs(loss):
        step = max(SHORT * STEEPEST * abs(loss) / promised, _SHORTEST)
        return step, 10 * step
    steps = ROUNDED if narrow else EXACT
    steep = promised >= (_STEEP_ROUNDED if narrow else _STEEP) * abs(loss)
    return tuple(sorted(steps)) if steep else steps


def is_steep(subject: Subject) -> bool:
    """Say whether the gradients of the first step are known, and too large for those of float32 to be exact."""
    known = subject.cache.get(("gradients", 0, 0, None, True))
    if known is None or not math.isfinite(known.loss):
        return False
    named = subject.named_parameters()
    promised = sum(
        float(torch.linalg.vector_norm(trees.dense(named[name]))) * stat.norm
        for name, stat in known.stats.items()
        if stat.norm > 0 and name in named and not named[name].is_meta
    )
    return bool(promised > STEEPEST * abs(known.loss))
