"""The slice of a value that a run takes, where another slice knows less of what was changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from ...lean import dataclass
from .operations import aligned, changed

if TYPE_CHECKING:
    from torch import Tensor

    from .operations import Step, Trace

_SLICES: Final = 16
"""Slices along one dimension that are compared, at most: more are positions, not parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenSlice:
    """A slice that depends on more of what was changed than another.

    Attributes:
        step: What takes it.
        dim: Along which dimension.
        taken, other: Its number there, and that of the last slice which depends on less.
        more: At how many elements it differs between the runs, where the other does not.
    """

    step: Step
    dim: int
    taken: int
    other: int
    more: int


def chosen_slice(base: Trace, moved: Trace) -> ChosenSlice | None:
    """Find the last step on the way to an output that takes a slice which knows more than another one of its value.

    Args:
        base: The run.
        moved: The same with one part of an input changed.
    """
    masks: dict[int, Tensor] = {}
    for a, b in aligned(base, moved):
        if a is None or b is None:
            continue
        for mine, theirs in zip((*a.operands, *a.results), (*b.operands, *b.results), strict=True):
            mask = changed(base.values[mine], moved.values[theirs])
            if isinstance(mask, torch.Tensor):
                masks.setdefault(mine, mask)
    pending, seen = list(base.outputs), set(base.outputs)
    while pending:
        place = pending.pop(0)
        step = base.makers.get(place)
        if step is None or place not in masks or not bool(masks[place].any()):
            continue
        found = _chosen(base, step, place, masks) if len(step.operands) == 1 else None
        if found is not None:
            return found
        fresh = [operand for operand in step.operands if operand not in seen]
        pending += fresh
        seen.update(fresh)
    return None


def _chosen(base: Trace, step: Step, place: int, masks: dict[int, Tensor]) -> ChosenSlice | None:
    whole, part = base.values[step.operands[0]].values, base.values[place].values
    mask = masks.get(step.operands[0])
    if whole is None or part is None or mask is None or part.dim() + 1 != whole.dim():
        return None
    for dim, size in enumerate(whole.shape):
        if not 1 < size <= _SLICES or whole.shape[:dim] + whole.shape[dim + 1 :] != part.shape:
            continue
        taken = next((i for i in range(size) if torch.equal(whole.select(dim, i), part)), None)
        if taken is None:
            continue
        known = mask.select(dim, taken)
        for other in reversed(range(size)):
            less = mask.select(dim, other)
            if bool(less.any()) and not bool((less & ~known).any()) and bool((known & ~less).any()):
                return ChosenSlice(
                    step=step, dim=dim, taken=taken, other=other, more=int((known & ~less).sum())
                )
    return None
