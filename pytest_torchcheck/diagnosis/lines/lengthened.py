"""The line through which the number of padded positions reaches the real ones, with what stands at the padded ones."""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import torch

from ... import sources
from ...explanation import on_line
from ...findings import Culprit
from ...probes.positions.lengthening import first_lengthening
from ...probes.positions.letting_in import find_letting
from ...runs.variants.padding import padded
from ...subject.errors import SubjectError
from ..mixing.branches import parted
from ..outputs import places
from ..outputs.cancelled import without_influence
from ..outputs.mask_lines import given_masks, not_hidden
from .handed_in import blamed

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...batches import Batch
    from ...findings import Location
    from ...probes.positions.lengthening import Lengthened
    from ...probes.recorded.operations import Trace
    from ...probes.recorded.watch import Op
    from ...subject import Subject
    from ..crashes.place import Place

_DIVISIONS = frozenset({"div", "divide", "truediv"})


def lengthening_line(
    subject: Subject,
    batch: Batch,
    longer: Batch,
    *,
    length: int,
    extra: int,
    side: Literal["right", "left"] = "right",
    real: torch.Tensor | None = None,
    longest: Callable[[], Batch] | None = None,
) -> Place | None:
    """Return the operation through which the number of padded positions reaches the real ones.

    Where the two runs make other calls, because a condition reads the mask, a run with still more
    padding may make those of the longer one: a leak between these two is not that condition's.

    Args:
        subject: The model.
        batch: A batch.
        longer: The same with ``extra`` more padded positions.
        length: Length of the sequence in ``batch``.
        extra: How many more positions ``longer`` has.
        side: Where they stand.
        real: Which positions of ``batch`` are no padding, bool [samples, positions]; None where
            that is not known.
        longest: Makes ``longer`` with ``extra`` more padded positions.
    """
    traces, allowed = places.recorded(subject, [batch, longer])
    if (by_number := parted(subject, *traces)) is None:
        return _between(subject, batch, traces, allowed, length, extra, side, real)
    if longest is None or real is None:
        return by_number
    try:
        traces, allowed = places.recorded(subject, [longer, longest()])
    except SubjectError:
        return by_number  # the model takes no more positions
    if parted(subject, *traces) is not None:
        return by_number
    now = padded(real, 1, extra, False, side)
    found = _between(subject, longer, traces, allowed, length + extra, extra, side, now)
    return found or by_number


def _between(
    subject: Subject,
    batch: Batch,
    traces: list[Trace],
    allowed: float,
    length: int,
    extra: int,
    side: Literal["right", "left"],
    real: torch.Tensor | None,
) -> Place | None:
    """Return the operation by which two runs of one length and a longer one differ, which make the same calls."""
    base, other = traces
    first = functools.partial(
        first_lengthening, length=length, extra=extra, side=side, allowed=allowed or 1e-4, real=real
    )
    found = first(base, other)
    if found is not None and found.numbers is not None:
        again = without_influence(subject, batch, base, other, found.numbers)
        if again is not None and (beside := first(again, other)) is not None:
            base, found = again, beside
    place = places.place_of(found, subject.model)
    if place is None or found is None:
        return place
    masked = not_hidden(
        subject, other, found.again, place, kept=length, length=length + extra, side=side
    )
    if masked is not None:
        return masked
    at = torch.arange(length + extra)
    added = at >= length if side == "right" else at < extra
    if (let_in := _let_in(other, found, place, added)) is not None:
        return let_in
    if found.counted:
        return _counted(place, found, extra)
    if found.numbers is None:
        if (handed := blamed(base, found.op, place, what="padded")) is not None:
            return handed
        return _masked(_over_filled(place, found), given_masks(base, found.op))
    return _with_length(place, found, length, extra)


def _with_length(place: Place, found: Lengthened, length: int, extra: int) -> Place:
    """Say of an operation that it computes with a number that grows with the padding."""
    assert found.numbers is not None
    name, line = found.op.name, on_line(place.location)
    short, long = found.numbers
    what = (
        "the length, padding included"
        if (short, long) == (length, length + extra)
        else "a number that grows with the padding"
    )
    divides = name.rpartition(".")[2].strip("_").removeprefix("true_") in _DIVISIONS
    return replace(
        place,
        cause=f"{place.ran} computes with {what}: {short:.4g}, and {long:.4g} with {extra} more padded positions",
        fix=f"divide by the number of real positions{line} (mask.sum(dim), at least 1), not by the length"
        if divides
        else f"compute that number{line} from the mask or the lengths, not from the padded size",
        settings=_sizes(place.location),
    )


def _counted(place: Place, found: Lengthened, extra: int) -> Place:
    """Say of an operation that it numbers the positions, padding included."""
    assert found.counted is not None
    short, long = found.counted
    line = on_line(place.location)
    return replace(
        place,
        cause=f"{place.ran} numbers the positions{line}, padding included",
        fact=f"{found.op.name} numbers one real position {short}, and {long} with {extra} more padded positions",
        fix=f"count real positions only{line}: (mask.cumsum(1) - 1).clamp(min=0)",
    )


def _let_in(longer: Trace, found: Lengthened, place: Place, padded: torch.Tensor) -> Place | None:
    """Return the line of a mask that hides some padded positions and lets others in; None where there is none."""
    mask = find_letting(longer, found.again, padded)
    if mask is None or mask.op.location is None:
        return None
    line = on_line(mask.op.location)
    name = sources.assigned_name(mask.op.location) or "the mask"
    return replace(
        place,
        location=mask.op.location,
        cause=f"{name} lets {mask.let} of {mask.padded} padded positions in",
        fact=f"{place.fact}; {mask.op.name}{line} gave {mask.let} of {mask.padded} added positions the truth value "
        "of the real ones, and the others the opposite",
        settings=(*place.settings, Culprit("call", found.op.name, "reads by it", place.location)),
        fix=f"hide every padded position{line}: position < length, where positions count from 0",
    )


def _masked(place: Place, masks: tuple[Culprit, ...]) -> Place:
    """Add the line that makes the mask which an operation is given, and which does not hide the padding from it."""
    where = masks[0].location if masks else None
    if where is None or where == place.location:
        return place
    fact = f"{place.fact}; its mask is made{on_line(where)}"
    return replace(place, fact=fact, settings=(*place.settings, *masks))


def _over_filled(place: Place, found: Lengthened) -> Place:
    """Add what stands at the padded positions that an operation reads, and which line put it there."""
    if found.maker is not None and found.maker.location not in (None, place.location):
        made = Culprit(
            "call", found.maker.name, "gives what is read, padding included", found.maker.location
        )
        return replace(place, settings=(made,))
    if found.filler is None or found.filler.location in (None, place.location):
        return place
    made = Culprit(
        "call",
        found.filler.name,
        f"gives {found.filled:g} at the padded positions",
        found.filler.location,
    )
    function = found.filler.location.function.rpartition(".")[2] or found.filler.name
    called = (
        [Culprit("call", function, "is called here", found.called)]
        if found.called not in (None, place.location)
        else []
    )
    emptied = found.emptied
    if emptied is not None and emptied.location is not None and found.filled is not None:
        return _undone(place, found, emptied, (made, *called))
    largest = found.op.name.rpartition(".")[2] in (
        "amax",
        "max",
        "max_pool1d",
        "adaptive_max_pool1d",
    )
    fix = (
        "give the lowest number, torch.finfo(dtype).min, to the padded "
        f"positions{on_line(made.location)}, not {found.filled:g}"
    )
    return replace(
        place,
        fact=f"{place.fact}; at the padded ones it read {found.filled:g}, from "
        f"{found.filler.name}{on_line(made.location)}",
        settings=(made, *called),
        fix=fix if largest else place.fix,
    )


def _undone(place: Place, found: Lengthened, emptied: Op, settings: tuple[Culprit, ...]) -> Place:
    """Return the line that sets padded positions to 0 too early: what follows gives them another number."""
    line, later = on_line(emptied.location), found.filler
    assert later is not None
    reading = Culprit("call", found.op.name, "reads them", place.location)
    return replace(
        place,
        op=emptied.name,
        location=emptied.location,
        cause=f"the padded positions are set to 0{line}, before what gives 0 another number: "
        f"{found.filled:g}, from {later.name}{on_line(later.location)}",
        fact=f"{place.fact}; at the padded ones {emptied.name}{line} gave 0, and {found.op.name}"
        f"{on_line(place.location)} read {found.filled:g}",
        fix=f"apply the mask{line} to the result of {later.name}, not to what that is computed from",
        settings=(*settings, reading),
    )


def _sizes(place: Location | None) -> tuple[Culprit, ...]:
    """Return the line above a place that takes a size of which the place reads the name."""
    for name in sources.names_read(place.file, place.line) if place is not None else ():
        assert place is not None
        above = sources.of_line(place.file, place.line - 1, place.function)
        made = sources.line_above(
            above, rf"^[\w\s,]*\b{re.escape(name)}\b[\w\s,]*=[^=].*(\.size\(|\.shape\b|\blen\()"
        )
        if made is not None:
            return (Culprit("call", name, "the padded size", made),)
    return ()
