"""Run a call line by line and find the user's line after which something is so.

Slow, and therefore only used to explain what a plain run has already found.
"""

from __future__ import annotations

import ast
import linecache
import os
from collections.abc import Callable, Iterable
from dataclasses import field, replace
from itertools import islice
from opcode import opname
from types import CodeType, FrameType
from typing import Any

from .. import sources
from ..data.contents import is_array
from ..data.describing import describe_leaf
from ..data.generators import fingerprint, is_generator
from ..findings import Location
from ..lean import dataclass
from .lines import traced


def line_of(code: CodeType, line: int) -> Location:
    """Return the location of a line of a code object."""
    return line_at(code.co_filename, line, getattr(code, "co_qualname", code.co_name))


def line_at(file: str, line: int, function: str = "") -> Location:
    """Return the location of a line of a file."""
    text = linecache.getline(file, line).strip()
    return Location(file=os.path.abspath(file), line=line, text=text, function=function)


Watcher = Callable[[FrameType, str, int], bool]
"""Called with a frame, an event and the number of the line just run: after each line of a frame
(``"line"``, or ``"return"`` for the last one), and before the first (``"call"``, with its def line).
Returns True when that line is the one to name."""


def find_line(call: Callable[[], Any], watcher: Watcher, *, least: int = 2) -> Location | None:
    """Return the first line of the user's code for which a watcher says True, or None.

    Lines of callees come before the line that calls them, so that the innermost line is named; for
    ``"call"`` it is the caller's line. Errors of the call are swallowed: it is known to fail or not.
    The tracer of a debugger or of coverage is put back.

    Args:
        call: What to run; takes no arguments.
        watcher: See :data:`Watcher`.
        least: Of which files, as :func:`pytest_torchcheck.sources.rank` says: 2 the user's own.
    """
    found: list[Location] = []
    running: dict[FrameType, int] = {}

    def local(frame: FrameType, event: str, _: Any) -> Any:
        if found:
            return None
        if event in ("line", "return"):
            last = running.get(frame)
            if last is not None and watcher(frame, event, last):
                found.append(line_of(frame.f_code, last))
            running[frame] = frame.f_lineno
            if event == "return":
                running.pop(frame, None)
        return local

    def enter(frame: FrameType, event: str, _: Any) -> Any:
        if found or event != "call" or sources.rank(frame.f_code.co_filename) < least:
            return None
        caller = frame.f_back
        while caller is not None and sources.rank(caller.f_code.co_filename) < least:
            caller = caller.f_back
        if watcher(frame, "call", frame.f_lineno):
            where = caller if caller in running else frame
            found.append(line_of(where.f_code, where.f_lineno))
            return None
        return local

    try:
        with traced(enter):
            call()
    except Exception as error:
        # what the call does is known by now; only where it does it is asked
        error.__traceback__ = None
    return found[0] if found else None


def line_giving(call: Callable[[], Any], code: CodeType, name: str) -> Location | None:
    """Run a call; return the last line of a function that gave its ``name`` a value; None for an argument's."""
    last: dict[FrameType, Any] = {}
    given: list[int | None] = [None]

    def watcher(frame: FrameType, event: str, line: int) -> bool:
        if frame.f_code is code and name in frame.f_locals:
            value = frame.f_locals[name]
            if last.get(frame, given) is not value:
                last[frame] = value
                given[0] = None if event == "call" else line
        return False

    find_line(call, watcher)
    return None if given[0] is None else line_of(code, given[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Return:
    """A function of the user's that has returned.

    Attributes:
        frame: Its own.
        line: Of the ``return``, or the last one that ran.
        value: What it returned.
        call: The expression of the caller that calls it, and the caller's file; None where that is
            no code of the user's.
    """

    frame: FrameType = field(repr=False)
    line: int
    value: Any = field(repr=False)
    call: tuple[str, ast.expr] | None = field(repr=False)


def returns(call: Callable[[], Any]) -> list[Return]:
    """Run a call and list what functions of the user's return, callees before their callers; errors are swallowed."""
    found: list[Return] = []

    def local(frame: FrameType, event: str, value: Any) -> Any:
        code = frame.f_code
        if event == "return" and opname[code.co_code[frame.f_lasti]].startswith("RETURN"):
            caller = frame.f_back
            given = expression(caller.f_code, caller.f_lasti) if caller is not None else None
            found.append(Return(frame=frame, line=frame.f_lineno, value=value, call=given))
        return local

    try:
        with traced(_in_user_code(local)):
            call()
    except Exception as error:
        # what the call does is known by now
        error.__traceback__ = None
    return found


def _in_user_code(local: Callable[..., Any]) -> Callable[[FrameType, str, Any], Any]:
    """Return a tracer that follows the functions of the user's own files."""

    def enter(frame: FrameType, event: str, _: Any) -> Any:
        return local if event == "call" and sources.rank(frame.f_code.co_filename) == 2 else None

    return enter


@dataclass(frozen=True, slots=True, kw_only=True)
class Swallowed:
    """An error that was raised below a line of the user's and went no further than a call.

    Attributes:
        place: The innermost line of the user's that it came from.
        kind: The name of its class.
        text: Its message.
        instead: The line that ran next in the function that caught it, the ``except`` left out.
    """

    place: Location
    kind: str
    text: str
    instead: Location | None = None


def swallowed(call: Callable[[], Any]) -> list[Swallowed]:
    """Run a call that returns and list the errors within it that no ``raise`` of the user's made, in order."""
    found: list[Swallowed] = []
    seen: list[BaseException] = []
    after: dict[FrameType, int] = {}

    def local(frame: FrameType, event: str, value: Any) -> Any:
        if event == "line" and frame in after:
            after[frame] += 1  # the first is that of the except clause
            if after[frame] == 2 and found and found[-1].instead is None:
                found[-1] = replace(found[-1], instead=line_of(frame.f_code, frame.f_lineno))
        elif event == "return":
            after.pop(frame, None)
        if event != "exception" or not isinstance(value[1], _ERRORS):
            return local
        after[frame] = 0
        if value[1] not in seen:
            seen.append(value[1])
            code = frame.f_code
            if opname[code.co_code[frame.f_lasti]] not in ("RAISE_VARARGS", "RERAISE"):
                found.append(
                    Swallowed(
                        place=line_of(code, frame.f_lineno),
                        kind=type(value[1]).__name__,
                        text=str(value[1]).partition("\n")[0],
                    )
                )
        return local

    try:
        with traced(_in_user_code(local)):
            call()
        return found
    finally:
        for error in seen:
            error.__traceback__ = None


_ERRORS = (RuntimeError, ValueError, IndexError, TypeError)


def expression(code: CodeType, instruction: int) -> tuple[str, ast.expr] | None:
    """Return the file and the expression that an instruction of the user's code belongs to, or None."""
    if sources.rank(code.co_filename) < 2 or instruction < 0:
        return None
    place = next(islice(code.co_positions(), instruction // 2, None), None)
    tree = sources.tree_of(code.co_filename)
    if place is None or None in place or tree is None:
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.expr) and place == (
            node.lineno, node.end_lineno, node.col_offset, node.end_col_offset,
        ):  # fmt: skip
            return code.co_filename, node
    return None


def first_difference(call: Callable[[], Any]) -> tuple[str, Location | None]:
    """Run a call twice and find the first local value that differs: randomness that no seed reaches.

    Args:
        call: What to run; seeds what it can, and takes no arguments.

    Returns:
        The local's name and the line that makes it; an empty name where none is found.
    """
    return unlike(*(locals_by_line([call]) for _ in range(2)))


Given = tuple[Location | None, str, str | None]
"""A line, a local that has another value after it, and a digest of that value."""


def unlike(first: list[Given], second: list[Given]) -> tuple[str, Location | None]:
    """Return the first local whose value differs between two runs, and the line that makes it."""
    for (place, name, digest), (_, _, other) in zip(first, second, strict=False):
        if digest != other:
            return name, place
    return "", None


def locals_by_line(calls: Iterable[Callable[[], Any]]) -> list[Given]:
    """Run calls one after the other and list each local of the user's as it gets a new value."""
    found: list[Given] = []
    last: dict[tuple[FrameType, str], str] = {}

    def watcher(frame: FrameType, event: str, line: int) -> bool:
        for name, value in frame.f_locals.items():
            digest = _digest(value)
            if digest is None or last.get((frame, name)) == digest:
                continue
            last[frame, name] = digest
            if event != "call":  # arguments are the caller's values
                found.append((line_of(frame.f_code, line), name, digest))
        return False

    for call in calls:
        find_line(call, watcher)
        last.clear()
    return found


def _digest(value: Any) -> str | None:
    if is_generator(value):
        return fingerprint(value).hex()
    if is_array(value) or isinstance(value, bool | int | float | str):
        return describe_leaf("", value).digest
    return None
