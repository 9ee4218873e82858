"""The lines of the user's source around the one that a finding names."""

from __future__ import annotations

import linecache
import textwrap
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ..findings import Edit, Location

_AROUND = 3


class Line(NamedTuple):
    """A line of an excerpt.

    Attributes:
        number: From 1.
        text: The line without the indentation that all lines of the excerpt share.
        here: Whether it is the one that the finding names.
        sign: ``-`` for a line that an edit takes away, ``+`` for one that it puts there, else empty.
    """

    number: int
    text: str
    here: bool
    sign: str = ""


def excerpt(place: Location | None) -> list[Line]:
    """Return the lines around a place; none where the file is not what the finding was made from.

    The report may be laid out long after the run, or elsewhere: an excerpt of another version of
    the file would show a line that nobody ran.
    """
    if place is None or not place.text:
        return []
    lines = _lines(place.file, place.line, place.text)
    return _shown(
        place.line, lines, [Line(place.line, lines[place.line - 1], True)] if lines else []
    )


def diff(edit: Edit | None) -> list[Line]:
    """Return the lines around an edit, with the line that goes and the one that comes.

    Empty where the file is not what the finding was made from, or where the edit changes nothing.
    """
    if edit is None or edit.old == edit.new:
        return []
    lines = _lines(edit.file, edit.line, edit.old)
    changed = [
        *(Line(edit.line, text, True, "-") for text in edit.old.splitlines()),
        *(Line(edit.line, text, True, "+") for text in edit.new.splitlines()),
    ]
    return _shown(edit.line, lines, changed)


def _lines(file: str, number: int, text: str) -> list[str]:
    """Return the lines of a file, none where the line of that number reads otherwise."""
    lines = [line.rstrip() for line in linecache.getlines(file)]
    meant = number <= len(lines) and lines[number - 1].strip() == text.strip()
    return lines if number >= 1 and meant else []


def _shown(number: int, lines: list[str], instead: list[Line]) -> list[Line]:
    """Return the lines around one, with what stands instead of it, without their common indentation."""
    if not lines:
        return []
    before = range(max(1, number - _AROUND), number)
    after = range(number + 1, min(len(lines), number + _AROUND) + 1)
    found = [
        *(Line(n, lines[n - 1], False) for n in before),
        *instead,
        *(Line(n, lines[n - 1], False) for n in after),
    ]
    texts = textwrap.dedent("\n".join(line.text.rstrip() for line in found)).split("\n")
    return [line._replace(text=text) for line, text in zip(found, texts, strict=True)]
