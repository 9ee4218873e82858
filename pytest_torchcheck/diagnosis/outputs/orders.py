"""Why entries or samples do not stand in the order in which they came: as places of a finding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...explanation import on_line
from ...findings import Culprit
from ..crashes.place import Place

if TYPE_CHECKING:
    from ...probes.recorded.operations import Step, Trace


def extended(place: Place, step: Step, many: int, others: int) -> Place:
    """Return the line that puts entries behind others which they are not behind in what they are combined with."""
    return Place(
        op=step.op.name,
        location=step.op.location,
        module=step.op.module,
        module_class=step.op.module_class,
        settings=(Culprit("call", place.op, "reads both", place.location),),
        cause=f"{step.op.name} puts the entries behind {many} others, but {place.op}"
        f"{on_line(place.location)} combines them with values that stand behind {others}",
        fact=f"when the input entries are permuted, the result of {step.op.name} is permuted from place {many} "
        f"on, what {place.op} combines it with from place {others} on",
        fix=f"put the {many} others on the other side of the entries{on_line(step.op.location)}, as in the values "
        "they are combined with",
    )


def sorted_alone(step: Step, meeting: Step) -> Place:
    """Return the line that puts entries in one order, which what they are combined with does not get."""
    called = Culprit("call", step.op.name, "is reached from here", next(iter(step.callers), None))
    meets = Culprit("call", meeting.op.name, "reads both", meeting.op.location)
    return Place(
        op=step.op.name,
        location=step.op.location,
        module=step.op.module,
        module_class=step.op.module_class,
        settings=tuple(
            one for one in (called, meets) if one.location not in (None, step.op.location)
        ),
        cause=f"{step.op.name} sorts the entries, but {meeting.op.name}{on_line(meeting.op.location)} combines them "
        "with values in the order in which they came",
        fact=f"when the input entries are permuted, the result of {step.op.name} stays as it was, and "
        f"{meeting.op.name} reads it together with values that are permuted",
        fix=f"sort what belongs to the entries in the same way{on_line(step.op.location)}",
    )


def reordered(place: Place, step: Step, trace: Trace) -> Place:
    """Return the line that puts entries in an order of their own, before a place that reads two orders together."""
    same = [other for other in trace.steps if other.op.location == step.op.location]
    callers = {other.callers[0] for other in same if other.callers}
    # a helper that several lines call does for each what it is told
    line = step.callers[0] if len(callers) > 1 and step.callers else step.op.location
    named = [
        (step.op.name, "moves the entries", step.op.location),
        (place.op, "reads both", place.location),
    ]
    return Place(
        op=step.op.name,
        location=line,
        module=step.op.module,
        module_class=step.op.module_class,
        settings=tuple(Culprit("call", op, what, at) for op, what, at in named if at != line),
        cause=f"{step.op.name} puts the entries in another order than that of the values with which "
        f"{place.op}{on_line(place.location)} combines them",
        fact=f"when the input entries are permuted, the result of {step.op.name} is neither unchanged nor "
        f"permuted in the same way; {place.fact}",
        fix=f"restore the original order of the entries{on_line(line)}: gather with the inverse permutation, "
        "order.argsort(), of the order in which they were taken",
    )


def exchanged(step: Step) -> Place:
    """Return the line that gives each sample the values of another one."""
    return Place(
        op=step.op.name,
        location=step.op.location,
        module=step.op.module,
        module_class=step.op.module_class,
        cause=f"{step.op.name} returns the samples in an order of its own: rows are those of other samples",
        fact=f"when the samples change places, the rows of {step.op.name} stay the same, but stand neither where they "
        "stood nor where their samples are; what it reads stands in the order of the samples or in a fixed one",
        fix=f"gather with the inverse permutation, order.argsort(), of the order in which the samples were "
        f"taken{on_line(step.op.location)}",
    )
