"""The first operation through which changed positions of a sequence reach positions that must not see them."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from ...lean import dataclass
from ..recorded.operations import Step, Trace, aligned, changed
from .rereading import find_reread, rows_of_labels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ...findings import Location
    from ..recorded.watch import Op
    from .rereading import Reread, Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The operation through which a change gets to positions that must not see it.

    Attributes:
        op: The operation: all that it read keeps the change in its place, its result does not.
        location: The user's line of it.
        module: Qualified name of the module in whose forward it runs.
        fact: What was measured, as a clause.
        kept: How many positions of the input were left alone.
        reaches: The position of the result farthest from the change that changed with it, where a
            dimension has the sequence's length.
        operands: What made the values that it read: a ``F.pad`` before a convolution, a mask
            before a softmax.
        reread: The view before it that took the positions out of their dimension.
        caller: The line that called the function in which the operation stands.
    """

    op: Op
    location: Location | None
    module: str
    fact: str
    kept: int
    reaches: int | None
    operands: tuple[Op, ...]
    reread: Reread | None = None
    caller: Location | None = None


def first_spread(
    base: Trace,
    changed_after: Mapping[int, Trace],
    length: int,
    *,
    side: Literal["right", "left"] = "right",
    allowed: float = 0.0,
) -> Spread | None:
    """Find the operation through which changed positions reach those that were left alone.

    For causality, change what follows position k; for padding, change the contents of the padded
    positions. A value keeps a change in its place if along some dimension (or, for a matrix of
    positions against positions, along either of two) only places change that may: those at or
    after k of a dimension of the sequence's length; of a longer one (padding) and of a shorter one
    (cropping, striding) those that end at the same place; of a multiple of it (flattened with the
    batch) those at or after k within each block. The operation is the first whose result does not,
    though all its operands do, on the way to an output that does not.

    Args:
        base: The unchanged run.
        changed_after: Per number k of kept positions, the run in which positions k, k+1, ... of
            every sample were changed (for ``side="left"``: all but the last k). Two or three k,
            the first not below half of the length, tell most.
        length: Length of the sequence in the inputs.
        side: Whether the changed positions stand at the end or at the beginning.
        allowed: Relative difference that is rounding and no change.

    Returns:
        The operation, or None where every output keeps the change in its place.
    """
    masks = _changed_places(changed_after, base, allowed, side)

    spread = _spread_places(base, masks, length)

    def spreads(place: int) -> bool:
        return place in spread

    starts = [place for place in base.outputs if spreads(place)]
    if not base.outputs:
        starts = [p for step in base.steps for p in step.results if spreads(p)][:1]
    if not starts:
        return None
    step, place = origin(base, starts[0], spreads)
    if step is None:
        return None
    if side == "right":
        step, place = _before_join(base, step, place, masks, length)

    def rows(place: int) -> Rows | None:
        return rows_of_labels(masks.get(place, {}), length, lambda labels, kept: labels >= kept)

    def in_pairs(place: int) -> bool:
        return _confined(masks.get(place, {}), length, "pairs")

    reread = find_reread(base, step, masks, rows, length, in_pairs)
    return replace(_spread(base, step, masks[place], length, side), reread=reread)


def _spread_places(base: Trace, masks: Mapping[int, Mapping[int, Tensor]], length: int) -> set[int]:
    """Return the values in which a change has left its place.

    A value without a dimension of the sequence's length may seem to keep it by chance, such as the
    16 features of a pooled sequence of 11: it counts as what it was made of.
    """
    parts = _parts_of_sequences(base, masks, length)
    found = {
        place
        for place, known in masks.items()
        if known and not _confined(known, length, "any", parts.get(place, ()))
    }
    for step in base.steps:
        read = any(place in found and place in base.makers for place in step.operands)
        for place in step.results if read else ():
            known = masks.get(place, {})
            if known and not _confined(known, length, "exact", parts.get(place, ())):
                found.add(place)
    return found


CHOOSING = frozenset(
    {"__getitem__", "split", "chunk", "unbind", "narrow", "select", "index_select", "gather"}
)
"""Operations that only choose elements of what they read."""


def _parts_of_sequences(
    base: Trace, masks: Mapping[int, Mapping[int, Tensor]], length: int
) -> dict[int, tuple[Tensor, ...]]:
    """Return the last position that each place of a chunk, or a chosen position, may see.

    Choosing spreads nothing, so what changed in a part of a sequence may change, there and in what
    is computed of it. A chosen position has no dimension left, or one of size 1.

    Returns:
        By value, what :func:`_readings` returns for a dimension of the part's size, and a tensor
        of shape () for a single position.
    """
    parts: dict[int, tuple[Tensor, ...]] = {}

    def keeps(place: int) -> bool:
        return _confined(masks.get(place, {}), length, "any", parts.get(place, ()))

    for step in base.steps:
        if not all(keeps(place) for place in step.operands):
            continue
        known = {
            tuple(each.flatten().tolist()): each
            for place in step.operands
            for each in parts.get(place, ())
        }
        sizes = {length, *(part.numel() for part in known.values() if part.ndim)}
        # an index that was computed may choose what must not be read
        alone = len(step.operands) == 1 and step.op.name.rpartition(".")[2] in CHOOSING
        chosen = step.operands if alone else ()
        for result in step.results:
            learned = list(known.values())
            for place in chosen:
                before, after = base.values[place].shape, base.values[result].shape
                dim = _cut_dimension(before, after, sizes)
                if dim is not None and result in masks:
                    kept = dim if len(before) == len(after) else None
                    learned.append(_last_seen(masks[result], kept))
            joined = length in base.values[result].shape and not any(
                length in base.values[place].shape for place in step.operands
            )
            if learned and not joined:
                parts[result] = tuple(learned)
    return parts


def _last_seen(masks: Mapping[int, Tensor], dim: int | None) -> Tensor:
    """Return the largest number of kept positions at which each place of a dimension, or anything, changed."""
    last = torch.tensor(-1)
    for kept in sorted(masks):
        mask = masks[kept].cpu()
        others = [] if dim is None else [d for d in range(mask.ndim) if d != dim]
        row = mask.any() if dim is None else mask.any(others) if others else mask
        last = torch.where(row, kept, last)
    return last


def _before_join(
    base: Trace, step: Step, place: int, masks: Mapping[int, Mapping[int, Tensor]], length: int
) -> tuple[Step, int]:
    """Walk on from an operation that joins values of one position each to what brought a later one into a value."""
    if len(step.operands) != length:
        return step, place
    for position, operand in enumerate(step.operands):
        for kept, mask in masks.get(operand, {}).items():
            if position >= kept or not bool(mask.any()):
                continue

            def early(place: int, kept: int = kept) -> bool:
                known = masks.get(place, {})
                whole = length in base.values[place].shape and _confined(known, length, "exact")
                return kept in known and bool(known[kept].any()) and not whole

            brought, made = origin(base, operand, early)
            if brought is not None:
                return brought, made
    return step, place


def _cut_dimension(
    before: tuple[int, ...], after: tuple[int, ...], sizes: Iterable[int]
) -> int | None:
    """Return the dimension, of one of some sizes, that a choice has shortened or taken away."""
    for dim, size in enumerate(before):
        rest = (*before[:dim], *before[dim + 1 :])
        if size in sizes and (
            after == rest
            or (
                len(after) == len(before)
                and (*after[:dim], *after[dim + 1 :]) == rest
                and after[dim] < size
            )
        ):
            return dim
    return None


def _changed_places(
    changed_after: Mapping[int, Trace], base: Trace, allowed: float, side: Literal["right", "left"]
) -> dict[int, dict[int, Tensor]]:
    """Return what changed in each value, by place and number of kept positions."""
    masks: dict[int, dict[int, Tensor]] = {}
    for kept, trace in changed_after.items():
        for a, b in aligned(base, trace):
            if a is None or b is None:
                continue
            pairs = zip((*a.operands, *a.results), (*b.operands, *b.results), strict=True)
            for place, other in pairs:
                if kept in masks.setdefault(place, {}):
                    continue
                mask = changed(base.values[place], trace.values[other], allowed)
                if isinstance(mask, Tensor):
                    masks[place][kept] = (
                        mask if side == "right" else mask.flip(tuple(range(mask.ndim)))
                    )
    return masks


def origin(trace: Trace, place: int, holds: Callable[[int], bool]) -> tuple[Step | None, int]:
    """Walk back from a value that has a property to the step that brought it in.

    Values that the run was given do not count: where they differ, the two runs began differently
    (statistics that the first run left behind), which no operation of the run is to blame for.

    Returns:
        The step, and the place of its result that has the property while nothing has that it read.
    """
    while True:
        step = trace.makers.get(place)
        if step is None:
            return None, place
        made = (p for p in step.operands if p != place and p in trace.makers)
        following = next((p for p in made if holds(p)), None)
        if following is None:
            return step, place
        place = following


def operands_of(trace: Trace, step: Step) -> tuple[Op, ...]:
    """Return the operations that made what a step read."""
    makers = (trace.makers.get(place) for place in step.operands)
    return tuple(dict.fromkeys(maker.op for maker in makers if maker is not None))


def _confined(
    masks: Mapping[int, Tensor],
    length: int,
    along: Literal["any", "exact", "pairs"],
    parts: Iterable[Tensor] = (),
) -> bool:
    """Say whether the changes stay along one dimension, or two, where they may be.

    Args:
        masks: What changed, by number of kept positions.
        length: Length of the sequence.
        along: ``any`` dimension that can be the sequence, those of its length (``exact``), or two
            of its length (``pairs``).
        parts: Parts of the sequence that the value was computed of.
    """
    if not any(bool(mask.any()) for mask in masks.values()):
        return True
    shape = next(iter(masks.values())).shape
    readings = [
        (dim, reading) for dim, size in enumerate(shape) for reading in _readings(size, length)
    ]
    whole = [(dim, reading) for dim, reading in readings if shape[dim] == length]
    single = {"any": readings, "exact": whole, "pairs": []}[along]
    single = [
        *single,
        *((d, part) for part in parts for d, n in enumerate(shape) if part.ndim and n == len(part)),
        *((0, part.expand(shape[0])) for part in parts if not part.ndim and shape),
    ]
    return any(
        _holds(masks, each) for each in [*((one,) for one in single), *combinations(whole, 2)]
    )


def _holds(masks: Mapping[int, Tensor], along: Iterable[tuple[int, Tensor]]) -> bool:
    """Say whether every change is at a place that may see it, along one of some dimensions."""
    for kept, mask in masks.items():
        free = torch.zeros_like(mask)
        for dim, reading in along:
            shape = [1] * mask.ndim
            shape[dim] = mask.shape[dim]
            free |= (reading >= kept).to(mask.device).view(shape)
        if bool((mask & ~free).any()):
            return False
    return True


def _readings(size: int, length: int) -> list[Tensor]:
    """Return the ways to read a dimension as the sequence.

    Returns:
        For each way the last input position that each place may see, int64 of shape (size,); none
        where the dimension cannot be the sequence: one place for all positions is a pooled value.
    """
    if size <= 1:
        return []
    index = torch.arange(size)
    if size == length:
        return [index]
    if size > length:
        flattened = [index % length, index // (size // length)] if size % length == 0 else []
        return [index, *flattened]
    strided = (index + 1) * length // size - 1
    # a crop of more than half is no longer told from any small dimension, such as the batch
    return [torch.maximum(index + length - size, strided) if 2 * size > length else strided]


def _spread(base: Trace, step: Step, masks: Mapping[int, Tensor], length: int, side: str) -> Spread:
    kept = min(masks, key=lambda k: (not bool(masks[k].any()), k))
    mask = masks[kept]
    first = None
    for dim in range(mask.ndim):
        if mask.shape[dim] == length:
            others = [d for d in range(mask.ndim) if d != dim]
            row = mask.any(others) if others else mask
            first = int(row.nonzero()[0]) if bool(row.any()) else None
            break
    where = "after" if side == "right" else "before"
    fact = (
        f"{step.op.name} gave {int(mask.sum())} of {mask.numel()} elements that change with the input "
        f"{where} its {'first' if side == 'right' else 'last'} {f'{kept} positions' if kept > 1 else 'position'}"
    )
    if first is not None:
        first = first if side == "right" else length - 1 - first
        fact += f", {'from' if side == 'right' else 'up to'} position {first} on"
        fact = fact.removesuffix(" on") if side == "left" else fact
    return Spread(
        caller=next(iter(step.callers), None),
        op=step.op,
        location=step.op.location,
        module=step.op.module,
        fact=fact + "; what it read keeps the change in its place",
        kept=kept,
        reaches=first,
        operands=operands_of(base, step),
    )
