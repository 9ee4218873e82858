"""Words for the calls, lines and names of a trace."""

from __future__ import annotations

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
