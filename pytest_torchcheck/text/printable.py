"""Text that any terminal, report and parser can take: whatever the user's code said, made visible."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

_COLOURS: Final = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_ODD: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 without tab and newline, DEL, C1
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # direction of text, which may hide what follows
    "\ud800-\udfff\ufffe\uffff]"  # what UTF-8 or XML cannot hold
)


def printable(text: str) -> str:
    r"""Return a text without what a terminal would act on and what a file could not hold.

    Colours are taken out; other control characters, marks that change the direction of text, and lone
    surrogates are written as escapes such as ``\x07`` and ``\u202e``. Tabs and line breaks stay.

    Args:
        text: A message, name, path or source line of the user's.
    """
    if _ODD.search(text) is None:
        return text
    text = _COLOURS.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    return _ODD.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    code = ord(found.group())
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def printable_data(value: Any) -> Any:
    """Return plain data with :func:`printable` applied to every text in it; the same object where none changes."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        made = {printable_data(key): printable_data(item) for key, item in value.items()}
        same = all(
            a is c and b is d for (a, b), (c, d) in zip(made.items(), value.items(), strict=False)
        )
        return value if same and len(made) == len(value) else made
    if isinstance(value, list | tuple):
        items = [printable_data(item) for item in value]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        return items if isinstance(value, list) else tuple(items)
    return value


UNREADABLE = "(its __str__ raises "
"""Begins what stands for a message that an exception cannot make."""


def message_of(error: BaseException) -> str:
    """Return the message of an exception, which may itself fail to make one.

    Args:
        error: What the user's code raised.
    """
    try:
        return printable(str(error))
    except Exception as problem:  # a __str__ of the user's may raise anything
        return f"{UNREADABLE}{type(problem).__name__})"


def shown(value: Any, most: int = 80) -> str:
    """Return ``repr(value)``, shortened; what an object of the user's is where its ``__repr__`` raises.

    Args:
        value: Anything of the user's.
        most: How many characters.
    """
    try:
        text = repr(value)
    except Exception as problem:  # a __repr__ of the user's may raise anything
        return f"<{type(value).__name__}, whose __repr__ raises {type(problem).__name__}>"
    return printable(text if len(text) <= most else f"{text[: most - 3]}...")
