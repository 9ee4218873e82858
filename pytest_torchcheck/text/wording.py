"""Names and counts in a sentence, and the nearest name to one that does not exist."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def names_text(names: Iterable[str], most: int = 3) -> str:
    """Return a few names and how many more there are; the model's own name is empty."""
    names = [name or "the model itself" for name in names]
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


def exact_globs(names: Iterable[str], every: Iterable[str], most: int = 6) -> str:
    """Return, as arguments of a promise, names and patterns ``part.*`` that match these names and no others.

    Args:
        names: Qualified names, all of ``every``.
        every: All that a promise may match.
        most: How many arguments are written out; what comes after them is an ellipsis.
    """
    names = list(names)
    others = set(every) - set(names)
    found: dict[str, None] = {}
    for name in names:
        parts = name.split(".")
        owners = [".".join(parts[:depth]) + "." for depth in range(1, len(parts))]
        whole = (o for o in owners if not any(other.startswith(o) for other in others))
        owner = next((o for o in whole if sum(n.startswith(o) for n in names) > 1), None)
        found[name if owner is None else f"{owner}*"] = None
    written = [*map(repr, list(found)[:most]), *(["..."] if len(found) > most else [])]
    return ", ".join(written)


def have(names: list[str], verb: str = "gets") -> str:
    """Return the verb for one name or several."""
    return verb if len(names) == 1 else verb.removesuffix("s")


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return ``1 tensor`` or ``3 tensors``."""
    return f"{number} {noun}" if number == 1 else f"{number} {plural or noun + 's'}"


def percent(share: float) -> str:
    """Write a share in percent, with a digit more where it is less than one."""
    return f"{share:.0%}" if share >= 0.01 else f"{share:.1%}"


def at_sizes(sizes: Mapping[str, int]) -> str:
    """Return `` at B=4, T=16``, and nothing where there are no sizes."""
    return f" at {', '.join(f'{name}={size}' for name, size in sizes.items())}" if sizes else ""


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
