"""Padding that gets in: by its length, by what stands there, or by a mask of scores that does not hide."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from ... import sources
from ...explanation import on_line
from ...findings import Culprit
from ...probes.positions.lengthening import first_lengthening
from . import places
from .mask_hiding import not_hidden

if TYPE_CHECKING:
    import torch

    from ...batches import Batch
    from ...findings import Location
    from ...probes.positions.lengthening import Lengthened
    from ...subject import Subject
    from ..crashes.place import Place


def lengthening_line(
    subject: Subject,
    batch: Batch,
    longer: Batch,
    *,
    length: int,
    extra: int,
    side: Literal["right", "left"] = "right",
    real: torch.Tensor | None = None,
) -> Place | None:
    """Return the operation through which the number of padded positions reaches the real ones.

    Args:
        subject: The model.
        batch: A batch.
        longer: The same with ``extra`` more padded positions.
        length: Length of the sequence in ``batch``.
        extra: How many more positions ``longer`` has.
        side: Where they stand.
        real: Which positions of ``batch`` are no padding, bool [samples, positions]; None where
            that is not known.
    """
    (base, other), allowed = places.recorded(subject, [batch, longer])
    found = first_lengthening(
        base, other, length=length, extra=extra, side=side, allowed=allowed or 1e-4, real=real
    )
    place = places.place_of(found, subject.model)
    if place is None or found is None:
        return place
    masked = not_hidden(other, found.again, place, kept=length, length=length + extra, side=side)
    if masked is not None:
        return masked
    if found.numbers is None:
        return _over_filled(place, found)
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


def _over_filled(place: Place, found: Lengthened) -> Place:
    """Add what stands at the padded positions that an operation reads, and which line put it there."""
    if found.filler is None or found.filler.location in (None, place.location):
        return place
    made = Culprit(
        "call",
        found.filler.name,
        f"gives {found.filled:g} at the padded positions",
        found.filler.location,
    )
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
        settings=(made,),
        fix=fix if largest else place.fix,
    )


_DIVISIONS = frozenset({"div", "divide", "truediv"})


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
