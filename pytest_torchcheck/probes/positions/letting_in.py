"""A mask, of one truth value for each position of each sample, that lets a part of the padding in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ...lean import dataclass

if TYPE_CHECKING:
    from torch import Tensor

    from ..recorded.operations import Trace
    from ..recorded.watch import Op

_FAR = 64
"""How many operations to go back from the one that reads padding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Letting:
    """The mask.

    Attributes:
        op: The operation that made it.
        let: How many of the added positions, over all samples, it treats as real ones.
        padded: How many there are.
    """

    op: Op
    let: int
    padded: int


def find_letting(trace: Trace, op: Op, added: Tensor) -> Letting | None:
    """Find the first mask behind an operation that is right for some padded positions, and not for others.

    Args:
        trace: The run.
        op: The operation that reads padding.
        added: bool ``[positions]``, which were added as padding; the first or the last one is real.

    Returns:
        The mask; None where each that was made is right, or hides none of the padding, as one of another purpose does.
    """
    start = next((step for step in trace.steps if step.op is op), None)
    pending = list(start.operands) if start is not None else []
    seen, found = set(pending), []
    while pending and len(seen) <= _FAR:
        place = pending.pop(0)
        maker = trace.makers.get(place)
        if maker is None:
            continue
        counts = _let_in(trace.values[place].values, added)
        if counts is not None and maker.op.location is not None:
            found.append((place, Letting(op=maker.op, let=counts[0], padded=counts[1])))
        fresh = [operand for operand in maker.operands if operand not in seen]
        pending += fresh
        seen.update(fresh)
    return min(found, key=lambda one: one[0])[1] if found else None


def _let_in(values: Tensor | None, added: Tensor) -> tuple[int, int] | None:
    """Count the padded positions that a mask treats as real, and all of them; None where it is no such mask."""
    if values is None or values.dtype != torch.bool:
        return None
    mask = values.squeeze()
    if mask.dim() != 2 or mask.shape[1] != len(added):
        return None
    first = mask[:, -1 if bool(added[0]) else 0]
    if bool((first != first[0]).any()) or not bool((mask != mask[:1]).any()):
        return None  # one that is the same for every sample does not know how long they are
    let = mask[:, added] == first[0]
    count = int(let.sum())
    return (count, let.numel()) if 0 < count < let.numel() else None
