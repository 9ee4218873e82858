"""Sorted values that a loss combines with targets in the order in which they came, explained."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ... import sources
from ...explanation import on_line
from ...findings import Culprit, Finding
from ...objects import trees
from ...probes.recorded.operations import record
from ...probes.recorded.sorted_values import sorted_beside
from ...verdicts import violated

if TYPE_CHECKING:
    from ...runs.losses.sorted_apart import Moved
    from ...subject import Subject


def sorted_apart(subject: Subject, moved: Moved) -> Finding | None:
    """Name what sorts and what is not sorted with it; None where the loss depends on places for another reason."""
    targets = trees.tensors(subject.batch().targets, "targets")
    with subject.pristine():
        base, other = record(moved.first), record(moved.second)
    found = sorted_beside(base, other, targets[moved.target])
    if found is None or found.meeting.op.location is None:
        return None
    sort, meeting = found.sorting.op, found.meeting.op
    lines = [at for at in (found.reading.op.location, *found.reading.callers) if at is not None]
    beside = (at for at in lines if sort.location and at.function == sort.location.function)
    read = next(beside, lines[0] if lines else None)  # what the function that sorts does with them
    alias = None if read is None else sources.alias_above(read)
    places = [
        Culprit("call", sort.name, "puts values in order of their size", sort.location),
        Culprit(
            "call", found.reading.op.name, "reads targets as they came", found.reading.op.location
        ),
        Culprit("call", meeting.name, "combines the two", meeting.location),
    ]
    place = alias or read
    name = sources.assigned_name(place) if place is not None else ""
    return violated(
        "target-misplaced",
        f"{moved.target} are compared with sorted values of other positions",
        location=place,
        culprits=[Culprit("loss", name or "loss", "is not sorted", place), *places],
        observed=f"the positions of {moved.output} and {moved.target} changed places together, and the loss moved "
        f"by {moved.change:.3g} (relative)",
        cause=f"{sort.name}{on_line(sort.location)} sorts values, and the targets that belong to them keep their "
        "places",
        because=f"{meeting.name}{on_line(meeting.location)} combines values that are the same in both orders with "
        "others that are not, which no sort or index has moved",
        fix=f"index the targets by what {sort.name} returns{on_line(place)}: targets[indices]",
        evidence={"change": moved.change},
    )
