"""``explain CODE``: the page of a code, or of a check, in the terminal."""

from __future__ import annotations

import difflib
import json
import sys
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Final

from . import DONE, CommandError

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


FILE: Final = "pages.json"


@cache
def pages() -> dict[str, dict[str, str]]:
    """Return ``{"codes": {code: text}, "checks": {check: text}}``, as Markdown."""
    text = resources.files(__package__).joinpath(FILE).read_text(encoding="utf-8")
    found: dict[str, dict[str, str]] = json.loads(text)
    return found
