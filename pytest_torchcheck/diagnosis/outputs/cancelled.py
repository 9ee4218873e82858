"""Numbers that a forward computes with and takes out again, as a division by the length and a product with it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch

from ... import sources
from ...probes.positions.lengthening import computes
from ...probes.recorded.operations import aligned, changed
from ...probes.recorded.watch import name_of
from ...record.modes import Functions
from ...subject.errors import SubjectError
from . import places

if TYPE_CHECKING:
    from ...batches import Batch
    from ...probes.recorded.operations import Step, Trace
    from ...subject import Subject


def without_influence(
    subject: Subject, batch: Batch, base: Trace, longer: Trace, numbers: tuple[float, float]
) -> Trace | None:
    """Record a run with a number of a longer one, wherever the two computed with the one and the other.

    Args:
        subject: The model.
        batch: Of the run.
        base: The run.
        longer: The run of a longer batch.
        numbers: What was computed with in ``base`` and in ``longer``.

    Returns:
        The run with the other number; None where an output changes: the number has an influence.
    """
    short, long = numbers
    both = ((a, b) for a, b in aligned(base, longer) if a is not None and b is not None)
    uses = {_use(a) for a, b in both if computes(a.op) and _unlike(a, b) == {numbers}}

    def around(func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        at = sources.of_frame(sys._getframe(2))
        if at is not None and (name_of(func), at.file, at.line) in uses:
            args = tuple(long if type(a) in (int, float) and a == short else a for a in args)
        return func(*args, **kwargs)

    try:
        with Functions(around):
            (again,), allowed = places.recorded(subject, [batch])
    except SubjectError:
        return None
    pairs = zip(base.outputs, again.outputs, strict=True)
    masks = [changed(base.values[a], again.values[b], allowed or _ALLOWED) for a, b in pairs]
    same = all(isinstance(mask, torch.Tensor) and not bool(mask.any()) for mask in masks)
    return again if same else None


_ALLOWED = 1e-4


def _unlike(one: Step, other: Step) -> set[tuple[float, float]]:
    return {(a, b) for a, b in zip(one.numbers, other.numbers, strict=False) if a != b}


def _use(step: Step) -> tuple[str, str, int]:
    at = step.op.location
    return step.op.name, "" if at is None else at.file, 0 if at is None else at.line
