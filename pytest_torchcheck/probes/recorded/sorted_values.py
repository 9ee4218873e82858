"""Values in order of their size that meet values in the order in which they came, in two runs of a loss."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from ...lean import dataclass
from .orders import Both
from .watch import SORTS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .operations import Step, Trace

_COLLECTS: Final = frozenset(
    {"cat", "stack", "getitem", "gather", "index_select", "take_along_dim"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SortedBeside:
    """Two orders that meet.

    Attributes:
        sorting: What puts values in order of their size.
        reading: The first operation after it that reads targets in the order in which they came.
        meeting: What combines the two, element by element.
    """

    sorting: Step
    reading: Step
    meeting: Step


def sorted_beside(base: Trace, moved: Trace, target: torch.Tensor) -> SortedBeside | None:
    """Find the operation that combines sorted values with what is computed of targets that no index has sorted.

    Args:
        base: The run of a loss.
        moved: The same with the positions of outputs and targets in another order.
        target: The targets of ``base``.
    """
    both = _Ways(base, moved, target)
    for step in base.steps:
        floats = [p for p in dict.fromkeys(step.operands) if both.is_float(p)]
        if len(floats) < 2 or step.op.name.rpartition(".")[2].strip("_") in _COLLECTS:
            continue
        for place in floats:
            sorting = both.sorting(place)
            for other in floats if sorting is not None else ():
                same = base.values[place].shape == base.values[other].shape
                reading = both.reading(other, sorting) if same and sorting is not None else None
                if reading is not None and sorting is not None:
                    return SortedBeside(sorting=sorting, reading=reading, meeting=step)
    return None


class _Ways:
    """What stands behind a value of the first run."""

    def __init__(self, base: Trace, moved: Trace, target: torch.Tensor) -> None:
        self._base, self._both, self._target = base, Both(base, moved), target
        self._number = {id(step): number for number, step in enumerate(base.steps)}

    def is_float(self, place: int) -> bool:
        """Say whether a value holds floating-point numbers that are not all the same."""
        values = self._base.values[place].values
        return (
            values is not None
            and values.is_floating_point()
            and values.numel() > 1
            and bool((values != values.flatten()[0]).any())
        )

    def sorting(self, place: int) -> Step | None:
        """Return what sorted a value that is the same in both runs, though what was sorted is not."""
        if not self._kept(place):
            return None
        for step in self._behind(place):
            name = step.op.name.rpartition(".")[2]
            if name in SORTS and not self._kept(step.operands[0]) and self._kept(step.results[0]):
                return step
        return None

    def reading(self, place: int, sorting: Step) -> Step | None:
        """Return the first operation after a sort on the way from the targets to a value that differs in the two runs.

        None where the value does not, or depends on no target, or on a sort itself.
        """
        if self._kept(place):
            return None
        behind = list(self._behind(place))
        if any(step.op.name.rpartition(".")[2] in SORTS for step in behind):
            return None
        given = {p for step in behind for p in step.operands if p not in self._base.makers}
        if not any(self._is_target(p) for p in given):
            return None
        late = [step for step in behind if self._number[id(step)] > self._number[id(sorting)]]
        moves = [step for step in late if any(not self._kept(p) for p in step.operands)]
        return min(moves, key=lambda step: self._number[id(step)], default=None)

    def _kept(self, place: int) -> bool:
        one, two = self._both.pair(place)
        if one is None or two is None or one.shape != two.shape:
            return False
        return torch.allclose(one.double(), two.double(), rtol=1e-6, atol=1e-8)

    def _is_target(self, place: int) -> bool:
        values = self._base.values[place].values
        return (
            values is not None
            and values.shape == self._target.shape
            and values.dtype == self._target.dtype
            and torch.equal(values, self._target)
        )

    def _behind(self, place: int) -> Iterator[Step]:
        """Iterate over the operations that a value was computed by, the nearest first."""
        pending, seen = [place], {place}
        while pending:
            step = self._base.makers.get(pending.pop(0))
            if step is None:
                continue
            yield step
            for operand in step.operands:
                if operand not in seen:
                    seen.add(operand)
                    pending.append(operand)
