"""Which parts of a source file are words for people, so that a search for code leaves them out."""

from __future__ import annotations

import functools
import io
import linecache
import re
import sys
import tokenize
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

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
