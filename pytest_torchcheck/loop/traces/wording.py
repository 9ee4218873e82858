"""Words for the calls, lines and names of a trace."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ...findings import Culprit, Location

if TYPE_CHECKING:
    from ..trace import Event


def at(place: Location | None) -> str:
    """Return ``train.py:12``, or ``the step`` where no line is known."""
    return "the step" if place is None else f"{place.file.rpartition('/')[2]}:{place.line}"


def call(event: Event, detail: str = "") -> Culprit:
    """Name a call."""
    return Culprit("call", event.name, detail, event.place)


def few(names: frozenset[str] | tuple[str, ...]) -> str:
    """Return the first names, and how many more there are."""
    shown = sorted(names)
    return ", ".join(shown[:3]) + (f" and {len(shown) - 3} more" if len(shown) > 3 else "")


def condition(deciding: list[Location], dead: frozenset[int]) -> Location | None:
    """Return the line that decides whether a step runs: its ``if``, or what gave the one name in it its value."""
    if not deciding:
        return None
    head = deciding[0]
    if re.fullmatch(r"(el)?if (not )?[\w.]+:.*", head.text) is None:
        return head
    given = [one for one in deciding[1:] if one.line not in dead]
    return given[0] if len(given) == 1 else head
