"""``explain CODE``: the page of a code, or of a check, in the terminal."""

from __future__ import annotations

import difflib
import sys
from typing import TYPE_CHECKING

from . import DONE, CommandError
from .pages import pages

if TYPE_CHECKING:
    import argparse


def run(given: argparse.Namespace) -> int:
    """Print the page."""
    sys.stdout.write(page(given.name) + "\n")
    return DONE


def page(name: str) -> str:
    """Return the page of a code or a check.

    Raises:
        CommandError: There is none; the message holds the nearest names.
    """
    name = name.strip().strip("[]")  # as a failure shows it
    found = pages()
    for kind in ("codes", "checks"):
        if name in found[kind]:
            return found[kind][name]
    allowed = sorted({*found["codes"], *found["checks"]})
    near = difflib.get_close_matches(name, allowed, 3, cutoff=0.5)
    within = [one for one in allowed if name and name in one and one not in near]
    hint = f"; did you mean {', '.join([*near, *within[:5]])}?" if near or within else ""
    raise CommandError(
        f"no code or check is named {name!r}{hint} A failure shows its code in brackets, "
        "such as [grad-none]"
    )
