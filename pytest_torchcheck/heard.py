"""Warnings of the user's code and of torch while a model runs as its user runs it: kept, and given back once.

The checks run a model many times, and in ways that nobody else would; what is warned of then is
silent. Listened to are the factory, and the first forwards, losses and steps on the base batch, and of
them only what the user's code or torch says inside of them.
"""

from __future__ import annotations

import contextlib
import re
import sys
import warnings
from dataclasses import field
from typing import TYPE_CHECKING, TextIO

from . import sources
from .lean import dataclass
from .text.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


_NUMBERS = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Heard:
    """One warning.

    Attributes:
        category: Its class.
        text: Its message; one that differs in its numbers only is the same warning.
        file, line: The user's line that it comes from, else the one that the warning names.
        words: The message with 0 for each number.
    """

    category: type[Warning]
    text: str = field(compare=False)
    file: str
    line: int
    words: str

    def say(self) -> None:
        """Warn again, where the filters of whoever called this package decide; what a terminal acts on is escaped.

        Raises:
            Warning: A filter says ``error``.
        """
        warnings.warn_explicit(printable(self.text), self.category, self.file, self.line)


def say_again(heard: Iterable[Heard]) -> Warning | None:
    """Warn again of each; return the first one that the filters make an error, so that the others are heard too."""
    refused: Warning | None = None
    for one in heard:
        try:
            one.say()
        except Warning as error:
            refused = refused or error
    return refused


class Ear:
    """Keeps warnings while it listens, each once.

    Attributes:
        heard: What was warned of, in the order of the first time.
    """

    def __init__(self) -> None:
        self.heard: dict[Heard, None] = {}
        self._inside = 0

    @contextlib.contextmanager
    def listening(self, listens: bool = True) -> Iterator[None]:
        """Keep what is warned of within the block, as far as the user's code runs there."""
        if not listens:
            yield
            return
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = self._hear
            yield

    @contextlib.contextmanager
    def users(self) -> Iterator[None]:
        """Say that the user's code runs within the block."""
        self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1

    def _hear(
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if self._inside:
            if not sources.rank(filename):
                filename, lineno = _users_line() or (filename, lineno)
            words = _NUMBERS.sub("0", str(message))
            self.heard.setdefault(Heard(category, str(message), filename, lineno, words))


def _users_line() -> tuple[str, int] | None:
    """Return the innermost line of the user's that runs: torch names its own, or that of a probe between the two."""
    frame = sys._getframe(2)
    while frame is not None:
        if sources.rank(frame.f_code.co_filename) == 2:
            return frame.f_code.co_filename, frame.f_lineno
        if frame.f_back is None:
            return None
        frame = frame.f_back
    return None
