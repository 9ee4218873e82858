"""The nearest name to one that does not exist, for every message that says so."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_MANY: Final = 40
"""More names than these are listed only where none comes near."""


def nearest(name: object, allowed: Iterable[str]) -> str | None:
    """Return the allowed name that comes nearest to a wrong one, or None if none is like it."""
    found = difflib.get_close_matches(str(name), list(allowed), 1)
    return found[0] if found else None


def unknown(what: str, name: object, allowed: Iterable[str]) -> str:
    """Say that a name does not exist: what was given, the nearest name, and what is allowed."""
    allowed = list(allowed)
    near = nearest(name, allowed)
    hint = f"; did you mean {near!r}?" if near else ";"
    if near and len(allowed) > _MANY:
        return f"{what}: unknown name {name!r}{hint}"
    return f"{what}: unknown name {name!r}{hint} allowed are: {', '.join(allowed)}"
