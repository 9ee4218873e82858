"""Indices that were counted within a sample and are used on rows in which the samples stand one after another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from .rereading import before_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from ..recorded.operations import Step, Trace
    from ..recorded.watch import Op
    from .rereading import Rows

READING = frozenset({"getitem", "index_select", "gather", "take", "take_along_dim", "embedding"})
WRITING = frozenset(
    {"setitem", "index_add", "index_copy", "index_put", "scatter", "scatter_add", "scatter_reduce"}
)
"""Operations that choose rows by numbers, without the underscores around their names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unshifted:
    """An operation whose indices all point to the rows of the first sample.

    Attributes:
        op: The operation.
        maker: What merged the samples' indices, or made them; None for indices that the run was given.
        largest: The largest index.
        indices: How many there are.
        rows: How many rows there are to choose from.
        block: How many of them belong to one sample.
    """

    op: Op
    maker: Op | None
    largest: int
    indices: int
    rows: int
    block: int


def find_unshifted(
    trace: Trace,
    step: Step,
    masks: Mapping[int, Mapping[int, Tensor]],
    rows_of: Callable[[int], Rows | None],
    count: int,
) -> Unshifted | None:
    """Find the operation that brings samples together because its indices are not shifted by sample.

    Arguments as of :func:`~.rereading.find_reread`; the rows are the samples'.
    """
    for current in before_rows(trace, step, masks, rows_of):
        name = current.op.name.rpartition(".")[2].strip("_")
        if name not in READING | WRITING:
            continue
        values = [trace.values[p] for p in current.operands]
        numbers = [
            (p, v.values)
            for p, v in zip(current.operands, values, strict=True)
            if v.values is not None and v.dtype in (torch.int64, torch.int32) and v.values.numel()
        ]
        for place, number in numbers:
            rows = _rows(trace, current, place, masks, rows_of, count, written=name in WRITING)
            if rows is None or int(number.min()) < 0 or int(number.max()) >= rows // count:
                continue
            if number.numel() % count or number.numel() < 2 * count:
                continue
            return Unshifted(
                op=current.op,
                maker=_maker(trace, place, masks, rows_of, count),
                largest=int(number.max()),
                indices=number.numel(),
                rows=rows,
                block=rows // count,
            )
    return None


def _rows(
    trace: Trace,
    step: Step,
    index: int,
    masks: Mapping[int, Mapping[int, Tensor]],
    rows_of: Callable[[int], Rows | None],
    count: int,
    *,
    written: bool,
) -> int | None:
    """Return the number of rows that an operation chooses from, where each sample has a block of them.

    Rows that are read show it by their changes. Those that are written to (zeros to which is added)
    do not: there the indices have to be the samples' own.
    """
    if written:
        own = {key for key, mask in masks.get(index, {}).items() if bool(mask.any())}
        shape = trace.values[step.results[0]].shape if step.results else ()
        whole = bool(shape) and shape[0] > count and not shape[0] % count
        return shape[0] if whole and len(own) > 1 else None
    for place in step.operands:
        found = rows_of(place) if place != index else None
        size = trace.values[place].shape[found.dim] if found is not None else 0
        if found is not None and size > count:
            blocks = torch.arange(size) // (size // count)
            if torch.equal(found.labels, blocks):
                return size
    return None


def _maker(
    trace: Trace,
    index: int,
    masks: Mapping[int, Mapping[int, Tensor]],
    rows_of: Callable[[int], Rows | None],
    count: int,
) -> Op | None:
    """Return the operation that merged the dimension of the samples; else the one that made the indices."""

    def batched(place: int) -> bool:
        shape = trace.values[place].shape
        if any(bool(mask.any()) for mask in masks.get(place, {}).values()):
            rows = rows_of(place)
            return rows is not None and shape[rows.dim] == count
        return count in shape

    place, last = index, None
    while (step := trace.makers.get(place)) is not None:
        last = last or step.op
        if batched(place) or any(batched(p) for p in step.operands):
            return step.op
        following = [p for p in step.operands if not trace.values[p].dtype.is_floating_point]
        if not following or following[0] == place:
            break
        place = following[0]
    return last
