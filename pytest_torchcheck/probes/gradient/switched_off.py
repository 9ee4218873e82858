"""The user's line that turned gradients off around a call."""

from __future__ import annotations

import linecache
import os
from typing import TYPE_CHECKING

from ... import sources
from ...findings import Location

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import FrameType


def line_at(filename: str, line: int, function: str = "") -> Location:
    """Make a location from a file and a line number."""
    text = linecache.getline(filename, line).strip()
    return Location(file=os.path.abspath(filename), line=line, text=text, function=function)


_GRAD_OFF = ("no_grad", "inference_mode", "set_grad_enabled")


def gradients_off_line(frames: Iterable[FrameType]) -> Location | None:
    """Return the innermost ``with`` or decorator that has gradients off for what runs; None where a call did it.

    Args:
        frames: The running frames, from the innermost.
    """
    inner: FrameType | None = None
    for frame in frames:
        if frame.f_code.co_name == "decorate_context" and inner is not None:
            return decorator_line(inner)
        if sources.rank(frame.f_code.co_filename):
            inner = frame
            if (found := with_line(frame)) is not None:
                return found
    return None


def decorator_line(frame: FrameType) -> Location:
    """Return the line of the decorator that turned gradients off for a running function."""
    code = frame.f_code
    first = code.co_firstlineno
    for line in range(first, first + 20):
        text = linecache.getline(code.co_filename, line)
        if any(word in text for word in _GRAD_OFF) or text.lstrip().startswith(("def ", "async ")):
            return line_at(code.co_filename, line, code.co_qualname)
    return line_at(code.co_filename, first, code.co_qualname)


def with_line(frame: FrameType) -> Location | None:
    """Return the ``with`` above a running line that turned gradients off, by its indentation."""
    code = frame.f_code
    if not sources.rank(code.co_filename):
        return None
    depth = _indent(linecache.getline(code.co_filename, frame.f_lineno))
    for line in range(frame.f_lineno - 1, code.co_firstlineno, -1):
        text = linecache.getline(code.co_filename, line)
        if not text.strip() or _indent(text) >= depth:
            continue
        depth = _indent(text)
        if text.lstrip().startswith("with ") and any(word in text for word in _GRAD_OFF):
            return line_at(code.co_filename, line, code.co_qualname)
    return None


def _indent(text: str) -> int:
    return len(text) - len(text.lstrip())
