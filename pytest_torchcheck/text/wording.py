"""Names and counts in a sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def names_text(names: Iterable[str], most: int = 3) -> str:
    """Return a few names and how many more there are; the model's own name is empty."""
    names = [name or "the model itself" for name in names]
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


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
