"""Lines of the user's code that match a pattern, or decide whether a line is reached."""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import re
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .prose import in_code

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..findings import Location
from .locations import of_line
from .syntax import around
from .untaken import source_of, untaken_lines


def search(thing: Callable[..., Any] | type | ModuleType, pattern: str) -> Location | None:
    """Return the first line of a function's, class's or module's source that matches a regular expression."""
    return next(iter(matches(thing, pattern)), None)


def matches(thing: Callable[..., Any] | type | ModuleType, pattern: str) -> list[Location]:
    """Return the lines of a function's, class's or module's source whose code matches a regular expression."""
    thing = thing if isinstance(thing, ModuleType) else inspect.unwrap(thing)
    dead = frozenset() if isinstance(thing, ModuleType) else untaken_lines(thing)
    code = getattr(thing, "__code__", None)
    found = _matching(thing if code is None else code, getattr(thing, "__qualname__", ""), pattern)
    return [place for place in found if place.line not in dead]


@functools.lru_cache(maxsize=4096)
def _matching(thing: Any, name: str, pattern: str) -> tuple[Location, ...]:
    """Return the matching lines of a class, a module or a function's code; the same are asked for each parameter."""
    lines, start, filename = source_of(thing)
    expression = re.compile(pattern)
    if "(?!" not in pattern and not re.search(pattern, "".join(lines), re.MULTILINE):
        return ()  # nearly always: one search of the text, not one of every line
    return tuple(
        of_line(filename, line, name)
        for line, text in enumerate(lines, max(start, 1))
        if in_code(filename, line, text, expression)
    )


def file_matches(filename: str, pattern: str) -> list[Location]:
    """Return the lines of a file whose code matches a regular expression."""
    expression = re.compile(pattern)
    return [
        of_line(filename, line)
        for line, text in enumerate(linecache.getlines(filename), 1)
        if in_code(filename, line, text, expression)
    ]


def line_above(place: Location, pattern: str, most: int = 20) -> Location | None:
    """Return the nearest line at or above a place, within its function, that matches a regular expression."""
    expression = re.compile(pattern)
    for line in range(place.line, max(0, place.line - most), -1):
        text = linecache.getline(place.file, line)
        if in_code(place.file, line, text, expression):
            return of_line(place.file, line, place.function)
        if re.match(r"\s*(async )?def ", text):
            return None
    return None


def deciding_lines(place: Location) -> list[Location]:
    """Return the innermost ``if`` around a line, and the lines before it, in its function, that assign names of its condition."""
    tests = [node for node in around(place.file, place.line, ast.If) if node.lineno < place.line]
    if not tests:
        return []
    test = tests[-1]
    head = of_line(place.file, test.lineno, place.function)
    names = [node.id for node in ast.walk(test.test) if isinstance(node, ast.Name)]
    found = [head]
    for name in dict.fromkeys(names):
        made = line_above(head, rf"^\s*{re.escape(name)}\s*=[^=]")
        while made is not None and len(found) < 4:
            found.append(made)
            above = of_line(place.file, made.line - 1, place.function)
            made = line_above(above, rf"^\s*{re.escape(name)}\s*=[^=]")
    return found
