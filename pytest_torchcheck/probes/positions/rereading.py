"""A view that reads the same memory under other dimensions, so that positions or samples no longer stand in rows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...lean import dataclass
from ...sources import edits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ...findings import Location
    from ..recorded.operations import Step, Trace
    from ..recorded.watch import Op

VIEWS = frozenset(
    f"{owner}.{name}"
    for owner in ("torch", "Tensor")
    for name in ("view", "reshape", "view_as", "reshape_as")
)
"""Calls that keep the order of the elements and change the dimensions over which it is read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The dimension of a value along which positions (or samples) stand, and which one each index holds."""

    dim: int
    labels: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Reread:
    """A view before which a change stood in rows of one dimension, and after which it does not.

    Attributes:
        op: The view.
        before: The shape that it read.
        after: The shape that it gave.
        rows: Along which dimension the rows stood before.
        shown: What was measured, as a clause.
        grouped: How many whole rows the view puts together, which may be meant; 0 where it takes
            rows apart.
        instead: Calls that give ``after`` and keep the rows; ``""`` where it is not clear which.
        copied: The line of the ``repeat`` that made what it read: copies of all rows, one after the other.
    """

    op: Op
    before: tuple[int, ...]
    after: tuple[int, ...]
    rows: Rows
    shown: str
    grouped: int
    instead: str
    copied: Location | None = None


def find_reread(
    trace: Trace,
    step: Step,
    masks: Mapping[int, Mapping[int, Tensor]],
    rows_of: Callable[[int], Rows | None],
    count: int,
    kept: Callable[[int], bool] | None = None,
    *,
    in_place: bool = False,
) -> Reread | None:
    """Find the view that took what a step reads out of its rows.

    Args:
        trace: The run.
        step: The operation at which a change was first seen where it must not be.
        masks: By value and by change, which elements changed.
        rows_of: Says in which rows the changes of a value stand, if they do in those of one dimension.
        count: How many positions (or samples) there are.
        kept: Says of values that stand in no such rows whether their changes are in place all the same.
        in_place: Whether a step may not bring rows together even where they lie in blocks: a view right before it
            is meant too that gave dimension 0 the number of rows, in place of theirs.
    """
    for maker in (trace.makers.get(place) for place in step.operands) if in_place else ():
        if maker is not None and maker.op.name in VIEWS and maker.operands and maker.results:
            rows = rows_of(maker.operands[0])
            if rows is not None and _replaces(trace, maker, rows, count):
                return _told(trace, maker, masks, rows, count)
    for current in before_rows(trace, step, masks, rows_of, kept):
        if current.op.name in VIEWS and current.operands and current.results:
            rows = rows_of(current.operands[0])
            found = None if rows is None else _reread(trace, current, masks, rows, count)
            if found is not None:
                return found
    return None


def before_rows(
    trace: Trace,
    step: Step,
    masks: Mapping[int, Mapping[int, Tensor]],
    rows_of: Callable[[int], Rows | None],
    kept: Callable[[int], bool] | None = None,
) -> Iterator[Step]:
    """Walk back from a step, through changed values that stand in no rows; arguments as of :func:`find_reread`."""
    seen: set[int] = set()
    pending = [step]
    while pending:
        current = pending.pop()
        yield current
        for place in current.operands:
            maker = trace.makers.get(place)
            if maker is None or place in seen or not any(m.any() for m in masks.get(place, {}).values()):  # fmt: skip
                continue
            seen.add(place)
            if rows_of(place) is None and not (kept is not None and kept(place)):
                pending.append(maker)


def _reread(
    trace: Trace, step: Step, masks: Mapping[int, Mapping[int, Tensor]], rows: Rows, count: int
) -> Reread | None:
    before = trace.values[step.operands[0]].shape
    after = trace.values[step.results[0]].shape
    return _told(trace, step, masks, rows, count) if _scatters(before, after, rows, count) else None


def _replaces(trace: Trace, step: Step, rows: Rows, count: int) -> bool:
    """Say whether a view merges the rows' dimension with others, and gives dimension 0, without them, their number."""
    before = trace.values[step.operands[0]].shape
    after = trace.values[step.results[0]].shape
    if not rows.dim or before[rows.dim] != count or math.prod(before) != math.prod(after):
        return False
    varying = _varying(_grid(before, rows).reshape(*after))
    first = after[0] == count and 0 not in varying
    return first and bool(varying) and all(after[d] > count for d in varying)


def _told(
    trace: Trace, step: Step, masks: Mapping[int, Mapping[int, Tensor]], rows: Rows, count: int
) -> Reread:
    before = trace.values[step.operands[0]].shape
    after = trace.values[step.results[0]].shape
    known = masks.get(step.results[0], {})
    key = min((k for k in known if known[k].any()), default=None)
    shown = ""
    if key is not None and key in masks.get(step.operands[0], {}):
        one, two = masks[step.operands[0]][key], known[key]
        dim = _widest(after, count)
        shown = (
            f"the elements that change stand at {_touched(one, rows.dim)} of {before[rows.dim]} places of "
            f"dimension {rows.dim} before it, and at {_touched(two, dim)} of {after[dim]} of dimension {dim} after it"
        )
    maker = trace.makers.get(step.operands[0])
    return Reread(
        op=step.op,
        copied=maker.op.location
        if maker is not None and maker.op.name.endswith(".repeat")
        else None,
        before=before,
        after=after,
        rows=rows,
        shown=shown,
        grouped=0 if _replaces(trace, step, rows, count) else _grouped(before, after, rows),
        instead=_instead(before, after, rows, count, _texts(step.op, len(after))),
    )


def _touched(mask: Tensor, dim: int) -> int:
    others = [d for d in range(mask.ndim) if d != dim]
    return int((mask.any(others) if others else mask).sum())


def _widest(shape: Sequence[int], count: int) -> int:
    """Return the dimension that seems to be that of the rows: it has their number, or most places."""
    return next(
        (d for d in reversed(range(len(shape))) if shape[d] == count), shape.index(max(shape))
    )


def _scatters(before: Sequence[int], after: Sequence[int], rows: Rows, count: int) -> bool:
    """Say whether a view takes rows apart, rather than merging, splitting or grouping whole ones.

    Groups of whole rows (frames that are stacked) are no fault of a view, unless it makes a
    dimension of the rows' number that is not theirs, as one that stands for a transpose does.
    """
    if math.prod(before) != math.prod(after) or not math.prod(before):
        return False
    varying = _varying(_grid(before, rows).reshape(*after))
    if len(varying) <= 1 or math.prod(after[d] for d in varying) == count:
        return False
    return any(after[d] == count for d in varying) or not _grouped(before, after, rows)


def _grid(shape: Sequence[int], rows: Rows) -> Tensor:
    """Return the row of each element of a value of this shape."""
    ones = [1] * len(shape)
    ones[rows.dim] = shape[rows.dim]
    return rows.labels.view(ones).expand(*shape)


def _varying(grid: Tensor) -> list[int]:
    """Return the dimensions along which the row changes."""
    return [d for d in range(grid.ndim) if bool((grid != grid.narrow(d, 0, 1)).any())]


def _grouped(before: Sequence[int], after: Sequence[int], rows: Rows) -> int:
    """Return how many whole rows stand in one place of the dimension that now holds them, 0 where some are cut."""
    block = math.prod(before[rows.dim + 1 :])
    strides = [math.prod(after[d + 1 :]) for d in range(len(after)) if after[d] > 1]
    if not all(s % block == 0 or block % s == 0 for s in strides):
        return 0
    return min((s // block for s in strides if s > block), default=1)


def _texts(op: Op, count: int) -> list[str] | None:
    """Return what the user's line writes for each size of the view."""
    return edits.argument_texts(op.location, op.name.rpartition(".")[2], count)


def _instead(
    before: Sequence[int],
    after: Sequence[int],
    rows: Rows,
    count: int,
    texts: Sequence[str] | None,
) -> str:
    """Return the view that keeps the rows' dimension where it is, and the transpose that moves it to its place.

    Sizes are written as the user's line writes them; where they are not known, nothing that needs
    them is returned.
    """
    places = [d for d in range(len(after)) if after[d] == count]
    if len(places) != 1 or before[rows.dim] != count:
        return ""
    straight = list(after)
    straight.insert(rows.dim, straight.pop(places[0]))
    grid = _grid(before, rows)
    if rows.dim >= len(after) or _varying(grid.reshape(*straight)) != [rows.dim]:
        moved = (rows.dim, places[0]) if places[0] < len(before) else (0, 0)
        if _varying(grid.movedim(*moved).reshape(*after)) != places:
            return ""
        first, second = sorted(moved)
        call = f"transpose({first}, {second})" if second - first == 1 else f"movedim{moved}"
        return "" if texts is None else f".{call}.reshape({', '.join(texts)})"
    view = ""
    if straight != list(before):
        if texts is None:
            return ""
        words = list(texts)
        words.insert(rows.dim, words.pop(places[0]))
        view = f".view({', '.join(words)})"
    if abs(places[0] - rows.dim) == 1 or len(after) == 2:
        return f"{view}.transpose({rows.dim}, {places[0]})"
    order = list(range(len(after)))
    order.insert(places[0], order.pop(rows.dim))
    return f"{view}.permute({', '.join(map(str, order))})"


def rows_of_labels(
    masks: Mapping[int, Tensor],
    count: int,
    allowed: Callable[[Tensor, int], Tensor],
) -> Rows | None:
    """Return the dimension in whose rows every change stands, or None.

    Args:
        masks: By change, which elements of the value changed.
        count: How many positions (or samples) there are; a dimension may hold them in blocks, or
            again and again.
        allowed: Says for the label of each index whether a change may stand there.
    """
    if not masks or not any(bool(mask.any()) for mask in masks.values()):
        return None
    shape = next(iter(masks.values())).shape
    for dim, size in enumerate(shape):
        if size < 2 or size % count:
            continue
        index = torch.arange(size)
        for labels in (index % count, index // (size // count))[: 1 if size == count else 2]:
            if all(
                not bool((mask.movedim(dim, -1).cpu() & ~allowed(labels, key)).any())
                for key, mask in masks.items()
            ):
                return Rows(dim=dim, labels=labels)
    return None
