"""The pages of codes and checks as they are installed.

``docs/build.py`` writes them from the same runs as the docs.
"""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Final

FILE: Final = "pages.json"


@cache
def pages() -> dict[str, dict[str, str]]:
    """Return ``{"codes": {code: text}, "checks": {check: text}}``, as Markdown."""
    text = resources.files(__package__).joinpath(FILE).read_text(encoding="utf-8")
    found: dict[str, dict[str, str]] = json.loads(text)
    return found
