"""A loss that pulls together what its labels tell apart, explained."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ... import sources
from ...explanation import on_line
from ...findings import Culprit, Finding, Location
from ...probes.recorded.operations import record
from ...verdicts import suspicious, violated
from .consumed import loss_line

if TYPE_CHECKING:
    from ...runs.losses.parted import Parted
    from ...subject import Subject


def unlike_joined(subject: Subject, found: Parted) -> Finding:
    """Explain a loss of pairs that is higher where samples of unlike labels are apart than where all are in one place.

    One that does not pull samples of one label together, either, may be meant to make groups alike: domains, for one.

    Args:
        subject: Whose loss.
        found: What was measured.
    """
    copies = _same_values(found)
    place = copies[1] if copies is not None else loss_line(subject)
    name = sources.assigned_name(place) if place is not None else ""
    both = found.apart > found.scattered
    cause = "the loss pulls samples of unlike labels together" + (
        ", but not those of one label: its sign or its choice of pairs is wrong, unless the groups are meant to "
        "become alike, as domains are" * both
    )
    if copies is not None:
        cause += f": line {copies[1].line} gives the numbers of line {copies[0].line} again"
    make = suspicious if both else violated
    return make(
        "unlike-joined",
        f"the loss is lower where all samples are in one place than where they are grouped by {found.target}",
        culprits=[Culprit("loss", name or "loss", "pulls unlike samples together", place)],
        location=place,
        observed=f"{found.classes} groups by {found.target}, at right angles to each other: {found.apart:.4g}; all "
        f"samples in one place: {found.joined:.4g}; each in a place of its own: {found.scattered:.4g}",
        cause=cause,
        because="other names for the classes leave the loss as it is, and other groups change it: it compares "
        "samples with each other, and labels only say which are alike",
        fix=f"let the similarity of unlike samples raise the loss{on_line(place)}: pairs of unlike labels need the "
        "sign opposite to that of like ones",
        evidence={"apart": found.apart, "joined": found.joined, "scattered": found.scattered},
    )


def _same_values(found: Parted) -> tuple[Location, Location] | None:
    """Return two lines that compute the same numbers of the same values by the same operation, in their order."""
    trace = record(found.run)
    known: dict[tuple[object, ...], Location] = {}
    for step in trace.steps:
        place = step.op.location
        values = [trace.values[p].values for p in step.results]
        if place is None or len(values) != 1 or values[0] is None or values[0].numel() < 2:
            continue
        if not values[0].is_floating_point() or bool((values[0] == values[0].flatten()[0]).all()):
            continue
        key = (step.op.name, step.operands, step.numbers)
        first = known.setdefault(key, place)
        if first.line != place.line and first.function == place.function:
            return first, place
    return None
