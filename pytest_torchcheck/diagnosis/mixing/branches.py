"""A condition that reads one number of a whole batch, and decides for every sample what is computed."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TYPE_CHECKING

from ... import sources
from ...explanation import on_line
from ...findings import Culprit
from ...probes.recorded.branching import branching
from ...subject.errors import SubjectError
from ..outputs.places import place_of, recorded

if TYPE_CHECKING:
    from ...batches import Batch
    from ...findings import Location
    from ...probes.recorded.operations import Trace
    from ...subject import Subject
    from ..crashes.place import Place


def parting_line(subject: Subject, *batches: Batch) -> Place | None:
    """Return the number by which the runs of two batches part; None where both make the same calls.

    Args:
        subject: The model.
        batches: Two of the same shapes, or of which one is longer.
    """
    try:
        (base, other), _ = recorded(subject, list(batches))
    except SubjectError:
        return None
    return parted(subject, base, other)


def parted(subject: Subject, base: Trace, other: Trace) -> Place | None:
    """Do what :func:`parting_line` does with two runs that are recorded."""
    found = branching(base, other)
    place = place_of(found, subject.model)
    if found is None or place is None:
        return None
    decides = tuple(
        Culprit("tensor", name, "decides what is computed", place.location)
        for name in _arguments(place.location)
    )
    alone = Culprit("call", found.alone.name, "runs or does not", found.alone.location)
    return replace(
        place,
        settings=(*decides, *place.settings, alone),
        cause="a condition reads one number, which some samples decide for all of them",
        fix=f"let the number{on_line(place.location)} hold for every sample (all of a mask, not a row of it), "
        "or compute the same for any value of it",
    )


def _arguments(place: Location | None) -> list[str]:
    """Return the arguments of the function that a line reads, in order."""
    if place is None:
        return []
    statement = sources.statement(place.file, place.line)
    around = sources.around(place.file, place.line, ast.FunctionDef)
    if statement is None or not around:
        return []
    known = {
        argument.arg for argument in ast.walk(around[-1].args) if isinstance(argument, ast.arg)
    }
    read = [node.id for node in ast.walk(statement) if isinstance(node, ast.Name)]
    return [name for name in dict.fromkeys(read) if name in known and name != "self"][:2]
