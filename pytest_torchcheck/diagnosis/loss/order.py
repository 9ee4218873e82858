"""A loss that the order or the places of the samples change, or that no target decides, explained."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ... import sources
from ...explanation import listed
from ...findings import Culprit, Finding
from ...probes.recorded.operations import record
from ...verdicts import suspicious, violated
from .consumed import loss_line

if TYPE_CHECKING:
    from ...findings import Location
    from ...probes.loss.places import ByPlace, Deaf
    from ...probes.loss.slopes import LossOfOutput
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


def by_place(subject: Subject, found: ByPlace) -> Finding:
    """Explain a loss in which the weight of a sample is that of its place in the batch."""
    place = _place(subject, r"\[0\]|\[:|\[-|arange|linspace|weight|enumerate|\*\*")
    sure = found.far and found.any_size
    return (violated if sure else suspicious)(
        "weight-by-place",
        "the weight of a sample in the loss depends on its place in the batch",
        culprits=[Culprit("loss", "loss", "weighs by place", place)],
        location=place,
        observed=f"moved with its targets to place {found.place}, sample {found.sample} has a gradient of the same "
        f"direction and {found.factor:.4g} times the length",
        cause="the loss multiplies each sample by a number that belongs to the place",
        because="outputs and targets were moved together; the gradient of every sample kept its direction, so "
        "the samples do not interact",
        fix="weigh samples by what they are (their class, a weight in the batch), or take the plain mean",
        evidence={"factors": list(found.others)},
    )


def deaf_gradient(subject: Subject, loss: LossOfOutput | None, found: Deaf) -> Finding:
    """Explain a loss whose value follows the targets, and whose gradient does not."""
    place = (
        _place(subject, r"\.detach\(|no_grad|\.data\b|\.item\(")
        if loss is not None
        else sources.search(type(subject.model).forward, r"\.detach\(|no_grad|\.data\b|\.item\(")
        or sources.of_own_class(subject.model)
    )
    paths = listed(list(found.paths))
    return violated(
        "gradient-without-targets",
        f"the loss changes with {paths}, its gradient does not",
        culprits=[
            *(Culprit("target", path, "does not reach the gradient") for path in found.paths),
            Culprit("loss", "loss", "has the gradient of something else", place),
        ],
        observed=f"{len(found.values)} other targets give losses from {min(found.values):.4g} to "
        f"{max(found.values):.4g} instead of {found.base:.4g}, and the same gradient each time",
        cause="the part of the loss that compares with the targets is cut off from its gradient",
        because="only the targets were changed, to very different ones, with the same outputs and seed",
        fix="compute the term that compares with the targets from the output without detach(), no_grad() or .data",
    )


def _place(subject: Subject, pattern: str) -> Location | None:
    """Return the line of the loss that matches, else its own."""
    loss = subject.contract.loss
    found = sources.search(loss, pattern) if callable(loss) else None
    return found or loss_line(subject)
