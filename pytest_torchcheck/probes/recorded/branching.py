"""A number that a condition reads, where it makes two runs compute different things."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...lean import dataclass
from .operations import aligned, changed

if TYPE_CHECKING:
    from ...findings import Location
    from .operations import Step, Trace
    from .watch import Op


@dataclass(frozen=True, slots=True, kw_only=True)
class Branching:
    """Where two runs part.

    Attributes:
        op: What made the number.
        location: Its line.
        module: The module that ran.
        first, second: The number in each run.
        alone: The first call that one of them makes alone.
    """

    op: Op
    location: Location | None
    module: str
    first: float
    second: float
    alone: Op

    @property
    def fact(self) -> str:
        """What was seen, in words."""
        line = f" on line {self.alone.location.line}" if self.alone.location else ""
        return (
            f"{self.op.name} gave {self.first:g} and {self.second:g}, and from there on one run alone calls "
            f"{self.alone.name}{line}"
        )


def branching(base: Trace, other: Trace) -> Branching | None:
    """Find the number that decides which calls a run makes: the last one that differs before the runs part.

    None where both make the same calls, or nothing of one element differs before they do not.
    """
    decided: tuple[Step, float, float] | None = None
    for one, two in aligned(base, other):
        if one is None or two is None:
            alone = one or two
            if decided is None or alone is None:
                return None
            step, first, second = decided
            return Branching(
                op=step.op,
                location=step.op.location,
                module=step.op.module,
                first=first,
                second=second,
                alone=alone.op,
            )
        decided = _numbers(base, other, one, two) or decided
    return None


def _numbers(base: Trace, other: Trace, one: Step, two: Step) -> tuple[Step, float, float] | None:
    """Return a step with its result in both runs, where that is one number and differs."""
    if len(one.results) != 1 or len(two.results) != 1:
        return None
    first, second = base.values[one.results[0]], other.values[two.results[0]]
    if first.shape not in ((), (1,)) or not changed(first, second):
        return None
    if first.values is None or second.values is None or first.values.is_complex():
        return None
    return one, float(first.values), float(second.values)
