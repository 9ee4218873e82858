"""Losses that compare samples, which one sample alone does not ask fairly: Cox, triplets, in-batch pairs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from ...lean import dataclass
from ...objects import trees
from ...probes.loss.pulls import ROUNDING, SAMPLES
from ...subject.errors import SubjectError

if TYPE_CHECKING:
    from ...probes.loss.slopes import LossOfOutput, Slopes

_MOST: Final = 64
"""How many samples are tried alone at most."""
_WEAK: Final = 0.01
"""Of the largest slope of the whole batch: a sample that counts by itself pulls at least as much alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A loss that compares samples; plain data.

    Attributes:
        lost: The samples that have no finite loss alone.
        kept: How many have one.
    """

    lost: tuple[int, ...]
    kept: int


def slopes_of(case: LossOfOutput) -> Slopes | None:
    """Return the slopes of a case; None where the loss refuses it: it asks for something else of its outputs."""
    try:
        return case.slopes()
    except SubjectError:
        return None


def compares(loss: LossOfOutput, base: Slopes, axis: int) -> Compared | None:
    """Return which samples have no finite loss alone, of a loss that compares samples; None of another.

    No sample pulls on anything alone there: those whose loss is finite have a gradient of 0. A loss over
    positives has a gradient for one of these by itself, and no output of a sample turns the gradient of another.

    Cost: a call of the loss for each sample, and one more.

    Args:
        loss: Of the whole batch.
        base: Its slopes there, finite.
        axis: Where the samples stand in every output.
    """
    size = loss.samples(axis)
    if not 2 <= size <= _MOST or len(loss.axes_of(size)) > 1:
        return None
    enough = _WEAK * max((trees.scale(slope) for slope in base.by_output.values()), default=0.0)
    lost, kept = [], 0
    for sample in range(size):
        found = slopes_of(loss.cut(torch.tensor([sample]), axis))
        if found is None:
            continue
        if not found.finite:
            lost.append(sample)
        elif any(trees.scale(slope) > enough for slope in found.by_output.values()):
            return None
        else:
            kept += 1
    return Compared(lost=tuple(lost), kept=kept) if lost and _turns(loss, base, axis) else None


def _turns(loss: LossOfOutput, base: Slopes, axis: int) -> bool:
    """Say whether outputs of every second sample change the gradients of the others, by more than one common factor."""
    mixed = {}
    for tensor in loss.outputs.values():
        rows = trees.dense(tensor).detach().movedim(axis, 0).clone()
        rows[1::2] = rows[1::2].lerp(rows[0::2][: len(rows[1::2])], 0.5)
        mixed[id(tensor)] = rows.movedim(0, axis)
    now = slopes_of(loss.with_outputs(mixed))
    if now is None or not now.finite:
        return False
    for path in base.by_output.keys() & now.by_output:
        both = (base.by_output[path], now.by_output[path])
        one, two = (slope.movedim(axis, 0)[0::2].flatten().double() for slope in both)
        factor = (one @ two) / (one @ one).clamp(min=1e-300) if len(one) > 1 else 1.0
        if bool((two - factor * one).abs().max() > 10 * ROUNDING * both[0].abs().max()):
            return True
    return False


def two_groups(loss: LossOfOutput, axis: int) -> bool:
    """Say whether no sample has a loss alone, and some pairs of them have one: each is of one of two groups."""
    last = max(loss.samples(axis) - 1, 0)
    few = range(min(last + 1, SAMPLES))
    sets = [[s] for s in few], [[0, s] for s in (*few[1:], last)]
    alone, pairs = ([slopes_of(loss.cut(torch.tensor(s), axis)) for s in some] for some in sets)
    finite = {found is not None and found.finite for found in pairs}
    return not any(found is not None and found.finite for found in alone) and len(finite) > 1
