"""A loss that the order of the samples changes, explained: the operation at which two orders meet."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ...findings import Culprit, Finding
from ...probes.recorded.operations import record
from ...verdicts import violated
from .consumed import loss_line

if TYPE_CHECKING:
    from ...findings import Location
    from ...probes.recorded.operations import Step, Trace
    from ...runs.losses.order import Reordered
    from ...subject import Subject


_REPEATS = (
    "cat",
    "concat",
    "repeat",
    "repeat_interleave",
    "tile",
    "stack",
    "reshape",
    "view",
    "flatten",
)


def order_of_pairs(subject: Subject, found: Reordered) -> Finding:
    """Name where the loss puts side by side two tensors whose samples are in different orders."""
    meeting, repeated = _meeting(found)
    named = [
        Culprit(
            "call", step.op.name, "repeats the samples in an order of its own", step.op.location
        )
        for step in repeated
    ]
    lines = " and ".join(f"line {c.location.line}" for c in named if c.location is not None)
    place: Location | None = (
        named[-1].location if named else meeting.op.location if meeting is not None else None
    )
    return violated(
        "order-matters",
        "the loss compares the samples of a batch with each other, and changes with their order",
        culprits=named or [Culprit("loss", "loss", "depends on the order", place)],
        location=place or loss_line(subject),
        observed=f"outputs and targets of the same {found.size} samples in another order change the loss by at "
        f"least {found.change:.0%}",
        cause=f"the tensors that {meeting.op.name} combines hold the samples in different orders: {lines} repeat "
        "them in different ways"
        if len(named) > 1 and meeting is not None
        else "what belongs to one sample is combined with what belongs to another",
        because="with each sample's own label beside its output, only the order of the terms of a sum would change",
        fix="repeat labels and outputs alike: torch.cat and repeat(n) keep whole batches together, "
        "repeat_interleave(n) and flatten the copies of one sample",
    )


def _meeting(found: Reordered) -> tuple[Step | None, list[Step]]:
    """Return the first operation whose values change with the order, and what repeated the samples of its operands."""
    first, second = record(found.first), record(found.second)
    if len(first.steps) != len(second.steps):
        return None, []
    for one, two in zip(first.steps, second.steps, strict=True):
        if one.op.name == two.op.name and _other_values(first, one, second, two):
            origins = [_repeated(first, place, found.size) for place in one.operands]
            steps = [step for step in origins if step is not None]
            places = {(s.op.location.file, s.op.location.line) for s in steps if s.op.location}
            return one, steps if len(places) > 1 else []
    return None, []


def _other_values(a: Trace, one: Step, b: Trace, two: Step) -> bool:
    """Say whether a result holds other values, in whatever order."""
    for mine, theirs in zip(one.results, two.results, strict=False):
        x, y = a.values[mine].values, b.values[theirs].values
        if x is None or y is None or x.shape != y.shape or not x.is_floating_point():
            continue
        x, y = x.flatten().sort().values, y.flatten().sort().values
        if not torch.allclose(x, y, rtol=1e-4, atol=1e-5 * float(x.abs().max() if len(x) else 0)):
            return True
    return False


def _repeated(trace: Trace, place: int, size: int) -> Step | None:
    """Follow a value back to the operation that made more entries than samples of one dimension."""
    stack, seen = [place], set()
    while stack:
        at = stack.pop(0)
        step = trace.makers.get(at)
        if step is None or at in seen:
            continue
        seen.add(at)
        stack += step.operands
        made = trace.values[at].shape
        if step.op.name.rpartition(".")[2] not in _REPEATS:
            continue
        for operand in step.operands:
            given = trace.values[operand].shape
            if size in given[:1] and made and made[0] > size and made[0] % size == 0:
                return step
    return None
