"""The lines of the user's source around the one that a finding names."""

from __future__ import annotations

import linecache
import textwrap
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ..findings import Location

_AROUND = 3


class Line(NamedTuple):
    """A line of an excerpt.

    Attributes:
        number: From 1.
        text: The line without the indentation that all lines of the excerpt share.
        here: Whether it is the one that the finding names.
    """

    number: int
    text: str
    here: bool


def excerpt(place: Location | None) -> list[Line]:
    """Return the lines around a place; none where the file is not what the finding was made from.

    The report may be laid out long after the run, or elsewhere: an excerpt of another version of
    the file would show a line that nobody ran.
    """
    if place is None or not place.text:
        return []
    lines = linecache.getlines(place.file)
    if not 1 <= place.line <= len(lines) or lines[place.line - 1].strip() != place.text.strip():
        return []
    first = max(1, place.line - _AROUND)
    numbers = range(first, min(len(lines), place.line + _AROUND) + 1)
    shown = textwrap.dedent("\n".join(lines[n - 1].rstrip() for n in numbers)).split("\n")
    return [Line(n, text, n == place.line) for n, text in zip(numbers, shown, strict=True)]
