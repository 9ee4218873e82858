"""Lines of the user's code, without its words for people, that match a pattern, or decide whether a line is reached."""

from __future__ import annotations

import ast
import functools
import inspect
import io
import linecache
import re
import sys
import tokenize
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..objects.peek import attribute
from .locations import of_line
from .syntax import around, source_of, untaken_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..findings import Location


_TEXTS = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}


def in_code(filename: str, line: int, text: str, expression: re.Pattern[str]) -> bool:
    """Say whether a regular expression matches a line from a place on that is code.

    A string without spaces and parentheses, such as the name of a parameter, counts as code.

    Args:
        filename: The file.
        line: Number of the line, from 1.
        text: The line.
        expression: What is searched for; where it matches the indentation too, what comes after
            that counts.
    """
    for match in expression.finditer(text):
        start = match.start() + len(match.group()) - len(match.group().lstrip())
        if not any(first < start < last for first, last in prose(filename).get(line, ())):
            return True
    return False


@functools.lru_cache(maxsize=64)
def prose(filename: str) -> dict[int, list[tuple[int, int]]]:
    """Return, by line, the columns between which comments and strings stand that are words; cached."""
    found: dict[int, list[tuple[int, int]]] = {}
    for token in _tokens("".join(linecache.getlines(filename))):
        if token.type not in _TEXTS:
            continue
        if token.type != tokenize.COMMENT and not re.search(r"[\s(]", token.string):
            continue
        (first, start), (last, end) = token.start, token.end
        for line in range(first, last + 1):
            # a match may begin at the quote itself, never at a comment
            begin = start - (token.type == tokenize.COMMENT) if line == first else -1
            found.setdefault(line, []).append((begin, end if line == last else sys.maxsize))
    return found


def _tokens(text: str) -> Iterator[tokenize.TokenInfo]:
    try:
        yield from tokenize.generate_tokens(io.StringIO(text).readline)
    except (tokenize.TokenError, SyntaxError):  # what came before it counts
        return


def search(thing: Callable[..., Any] | type | ModuleType, pattern: str) -> Location | None:
    """Return the first line of a function's, class's or module's source that matches a regular expression."""
    return next(iter(matches(thing, pattern)), None)


def matches(thing: Callable[..., Any] | type | ModuleType, pattern: str) -> list[Location]:
    """Return the lines of a function's, class's or module's source whose code matches a regular expression."""
    thing = thing if isinstance(thing, ModuleType) else inspect.unwrap(thing)
    dead = frozenset() if isinstance(thing, ModuleType) else untaken_lines(thing)
    code = attribute(thing, "__code__")
    found = _matching(
        thing if code is None else code, attribute(thing, "__qualname__", ""), pattern
    )
    return [place for place in found if place.line not in dead]


def beside(cls: type, pattern: str) -> list[Location]:
    """Return the matching lines of the functions that stand beside a class, such as an ``init_weights``."""
    home = inspect.getmodule(cls)
    functions = [f for f in vars(home).values() if inspect.isfunction(f)] if home else []
    return [place for function in functions for place in matches(function, pattern)]


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
