"""A mask that an attention was given as an argument: the line of the other function that made it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal

import torch

from ... import sources
from ...explanation import on_line
from ...findings import Culprit

if TYPE_CHECKING:
    from ...findings import Location
    from ...probes.recorded.operations import Step, Trace
    from ...probes.recorded.watch import Op
    from ..crashes.place import Place

_APPLYING: Final = ("masked_fill", "where", "add", "iadd", "radd")
_BETWEEN: Final = (
    "matmul",
    "bmm",
    "einsum",
    "softmax",
    "dropout",
    "mul",
    "div",
    "truediv",
    *_APPLYING,
)
"""What stands between a mask that is applied to scores and the sum over the positions that they weigh."""
_STEPS: Final = 6


def blamed(
    trace: Trace, op: Op, place: Place, *, what: Literal["padded", "later"], square: int = 0
) -> Place | None:
    """Return the line that makes the mask by which an attention reads what it must not; None without one.

    A mask that is made of an input may know of the padding, and one that tells what came before from what comes later
    is applied the wrong way round: whether it is made or read wrongly is not known, and nothing is returned.

    Args:
        trace: The run.
        op: The operation that reads the positions.
        place: It, as a place.
        what: Which positions get in.
        square: Number of positions: only a mask of queries by keys counts; 0 for a mask of any shape.
    """
    made = handed_in(trace, op, square)
    if made is None or (at := made.op.location) is None:
        return None
    name = sources.assigned_name(at) or "the mask"
    line = on_line(at)
    return replace(
        place,
        location=at,
        built=None,
        cause=f"{name}, the mask that {place.ran} is given, does not hide the {what} positions",
        fact=f"{place.fact}; its mask comes from another function, which makes it{line}",
        settings=(
            Culprit("tensor", name, "the mask", at),
            *place.settings,
            Culprit("call", op.name, "reads by it", place.location),
        ),
        fix=f"hide the {what} positions as well where the mask is made{line}",
    )


def handed_in(trace: Trace, op: Op, square: int = 0) -> Step | None:
    """Return what made the mask of an operation last, in another function of the user's than the one that reads it."""
    step = next((step for step in trace.steps if step.op is op), None)
    for _ in range(_STEPS):
        if step is None or not step.operands:
            return None
        name = _bare(step)
        if "attention" in name or name in _APPLYING:
            masks = [p for p in step.operands if _is_mask(trace, p, step, square)]
            if not masks or _knows(trace, masks[-1], square):
                return None
            return _outside(trace, masks[-1], step.op.location)
        if name not in _BETWEEN:
            return None
        step = trace.makers.get(step.operands[0])
    return None


def _bare(step: Step) -> str:
    return step.op.name.rpartition(".")[2].strip("_")


def _is_mask(trace: Trace, place: int, step: Step, square: int) -> bool:
    """Say whether an operand holds truth values, or numbers of which some are 0 and all others very negative."""
    values = trace.values[place].values
    if values is None or not values.numel() or (square and values.shape[-2:] != (square, square)):
        return False
    if values.dtype == torch.bool or not values.is_floating_point() or place == step.operands[0]:
        return values.dtype == torch.bool
    hides = values <= _HIDES
    return bool(hides.any()) and bool((hides | (values == 0)).all())


def _knows(trace: Trace, place: int, square: int) -> bool:
    """Say whether a mask is made of an input, or, of queries by keys, tells every later key from every earlier one."""
    values = trace.values[place].values
    if values is None:
        return True
    if not square:
        return not all(_is_table(trace.values[root].values) for root in _roots(trace, place))
    later = torch.ones(square, square, dtype=torch.bool, device=values.device).triu(1)
    sides = [values[..., side].flatten() for side in (later, later.mT)]
    alike = all(bool((side == side[0]).all()) for side in sides)
    return alike and bool(sides[0][0] != sides[1][0])


def _roots(trace: Trace, place: int) -> set[int]:
    """Return the values behind one that no operation made: inputs, parameters and buffers."""
    found, seen, pending = set(), {place}, [place]
    while pending:
        step = trace.makers.get(at := pending.pop())
        if step is None:
            found.add(at)
        fresh = set(step.operands) - seen if step is not None else set()
        seen |= fresh
        pending.extend(fresh)
    return found


def _is_table(values: torch.Tensor | None) -> bool:
    """Say whether a value may be a mask of queries by keys that a model keeps."""
    numbers = values is not None and (values.dtype == torch.bool or values.is_floating_point())
    return numbers and values.dim() >= 2 and values.shape[-1] == values.shape[-2]  # type: ignore[union-attr]


_HIDES: Final = -1e3
"""A number that leaves nothing of a score which it is added to."""


def _is_bool(trace: Trace, place: int) -> bool:
    values = trace.values[place].values
    return values is not None and values.dtype == torch.bool


def _outside(trace: Trace, place: int, reading: Location | None) -> Step | None:
    """Follow a value back through operations with one tensor, out of the function in which it is read.

    Numbers that a mask of truth values is filled in for are that mask. Where these lead on into a further
    function, it was handed through the one between.
    """
    found: Step | None = None
    here = reading
    while here is not None and (step := trace.makers.get(place)) is not None:
        at = step.op.location
        if at is None or sources.rank(at.file) != 2:
            break
        if (at.file, at.function) != (here.file, here.function):
            found, here = step, at
        flags = [p for p in step.operands if _is_bool(trace, p)]
        before = flags if _bare(step) == "masked_fill" else list(step.operands)
        if len(before) != 1:
            break
        place = before[0]
    return found
