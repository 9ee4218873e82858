"""Indices without influence: a choice along a dimension in which a repeat or expand has made all entries equal."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from ...probes.numbers.views import equal_along
from ...probes.positions.spread import origin
from ...probes.recorded.operations import record
from ...subject.errors import SubjectError
from ..variants.woken import jitter

if TYPE_CHECKING:
    from ...probes.numbers.views import IdleChoice
    from ...probes.recorded.operations import Trace
    from ...subject import Subject

_COPYING = frozenset({"repeat", "expand", "expand_as", "broadcast_to", "tile", "repeat_interleave"})


def idle_choice(subject: Subject, choice: IdleChoice) -> IdleChoice | None:
    """Return a choice with the line that makes the copies; None where the entries were equal by chance.

    They are equal in a run of another batch at other weights too, in every call on the line, and the first
    operation after which they are copies its operand. A table of zeros is moved, and equal entries of a batch are
    other ones there.

    Cost: one recorded forward, where a choice among equal entries was seen.
    """
    batch = subject.batch(1).clone()
    try:
        with subject.pristine(steps=True, train=True, seeded=True) as model, torch.no_grad():
            jitter(model, seed=subject.seed)
            trace = record(lambda: subject.call(model, batch), model)
    except SubjectError:
        return None
    taken = [
        step.operands[0]
        for step in trace.steps
        if step.op.name.rpartition(".")[2] == choice.op and step.op.location == choice.location
    ]
    if not taken or not all(_equal(trace, place, choice.dim) for place in taken):
        return None
    size = trace.values[taken[0]].shape[choice.dim]

    def copied(place: int) -> bool:
        shape = trace.values[place].shape
        dims = (dim for dim in range(1, len(shape)) if shape[dim] == size)
        return any(_equal(trace, place, dim) for dim in dims)

    first, _ = origin(trace, taken[0], copied)
    if first is None or first.op.name.rpartition(".")[2] not in _COPYING:
        return None
    return replace(choice, made=first.op.location)


def _equal(trace: Trace, place: int, dim: int) -> bool:
    values = trace.values[place].values
    return values is not None and equal_along(values, dim)
