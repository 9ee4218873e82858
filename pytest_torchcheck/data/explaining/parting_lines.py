"""By which line two reads of one sample part: they take other ways, or hold another map; and what was drawn for it."""

from __future__ import annotations

import ast
import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ... import sources
from ...record.lines import traced
from ...record.tracing import line_of
from ..contents import is_array
from ..describing import describe_leaf, leaves
from ..reading import read

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType, FrameType

    from ...findings import Location
    from ..plan import Part

_SMALL: Final = 16  # elements of what decides, rather than is decided on
_DEPTH: Final = 6


@dataclass(frozen=True, slots=True)
class _Step:
    """A line that ran: in which frame, called by which at which lines, the innermost last, and what was so then."""

    frame: int
    code: CodeType
    line: int
    callers: tuple[tuple[int, CodeType, int], ...]
    maps: tuple[str, ...]
    plain: dict[str, str]


@dataclass(slots=True)
class Traced:
    """A sample and the lines that read it; the sample is None where reading it raised."""

    sample: Any = None
    steps: list[_Step] = field(default_factory=list)


def traced_read(part: Part, index: int, seed: int, size: int) -> Traced:
    """Read a sample line by line.

    Args:
        part: Whose sample.
        index: Which one.
        seed: For the reading.
        size: Of the arrays that are compared: how many elements they have.
    """
    found = Traced()
    frames: dict[FrameType, int] = {}
    last: dict[FrameType, int] = {}

    def local(frame: FrameType, event: str, value: Any) -> Any:
        if event in ("line", "return"):
            if frame in last:
                callers = tuple(_callers(frame, frames))[::-1]
                held = [*frame.f_locals.items(), *([("", value)] if event == "return" else [])]
                maps, plain = tuple(_maps(held, size)), dict(_plain(frame))
                step = _Step(frames[frame], frame.f_code, last[frame], callers, maps, plain)
                found.steps.append(step)
            last[frame] = frame.f_lineno
        return local

    def enter(frame: FrameType, event: str, _: Any) -> Any:
        if event != "call" or sources.rank(frame.f_code.co_filename) < 2:
            return None
        frames[frame] = len(frames)
        return local

    try:
        with traced(enter):
            found.sample = read(part.dataset, index, seed)
    except Exception as error:  # a sample that cannot be read under this seed is left out
        error.__traceback__ = None
    return found


def parting(one: Traced, other: Traced) -> tuple[Location | None, str]:
    """Return the line by which two reads part, and the variable by which they do.

    Where a variable that this line reads differs, the line is the one that gave it its value; the name is empty where
    a line draws by itself. None where the reads do not part within lines of the user's.
    """
    for place, (a, b) in enumerate(zip(one.steps, other.steps, strict=False)):
        if (a.code, a.line) != (b.code, b.line):
            for mine, theirs in (
                (a, b),
                (b, a),
            ):  # one is within a call that the other does not make
                if (theirs.frame, theirs.code, theirs.line) in mine.callers:
                    return _drawn(one.steps, other.steps, place, theirs)
            last = place - 1
            return _drawn(one.steps, other.steps, last, one.steps[last]) if place else (None, "")
        if a.maps != b.maps:
            return _drawn(one.steps, other.steps, place, a)
    return None, ""


def _drawn(
    one: list[_Step], other: list[_Step], end: int, parted: _Step
) -> tuple[Location | None, str]:
    """Follow what a line reads, where it differs, to the line that gave it; an argument to the call that gave it."""
    frame, code, line = parted.frame, parted.code, parted.line
    callers, name = parted.callers, ""
    for _ in range(_DEPTH):
        read_here = _named(code, line, ast.Load)
        unlike = [
            key
            for key in read_here
            if _known(one, end, frame, key) != _known(other, end, frame, key)
        ]
        for key in unlike:
            given = _giving(one, end, frame, key)
            if given is not None:
                return line_of(given.code, given.line), key
        if not unlike or not callers:
            break
        name = unlike[0]
        frame, code, line = callers[-1]
        callers = callers[:-1]
    return line_of(code, line), name


def _known(steps: list[_Step], end: int, frame: int, key: str) -> str | None:
    """Return what a name held in a frame before the step at a place, or an argument after it as the frame's first."""
    near = (*reversed(steps[:end]), *steps[end : end + 1])
    return next((step.plain.get(key) for step in near if step.frame == frame), None)


def _giving(steps: list[_Step], end: int, frame: int, key: str) -> _Step | None:
    """Return the last step before a place that gave a name its value in a frame; an attribute, in any frame."""
    for step in reversed(steps[:end]):
        if (step.frame == frame or "." in key) and key in _named(step.code, step.line, ast.Store):
            return step
    return None


def _named(code: CodeType, line: int, kind: type[ast.expr_context]) -> list[str]:
    """List the names and attributes of ``self`` that a line reads, or writes; of a compound statement its head's."""
    node: ast.AST | None = sources.statement(code.co_filename, line)
    if isinstance(node, ast.If | ast.While):
        parts: list[ast.AST] = [node.test]
    elif isinstance(node, ast.For):
        parts = [node.iter, node.target]
    elif isinstance(node, ast.With):
        parts = list(node.items)
    else:
        parts = [node] if node is not None else []
    found: dict[str, None] = {}
    for part in parts:
        for each in ast.walk(part):
            if isinstance(each, ast.Name) and isinstance(each.ctx, kind):
                found.setdefault(each.id)
            elif isinstance(each, ast.Attribute) and isinstance(each.ctx, kind):
                found.setdefault(ast.unparse(each))
    return list(found)


def _callers(frame: FrameType, frames: dict[FrameType, int]) -> Iterator[tuple[int, CodeType, int]]:
    caller = frame.f_back
    while caller is not None:
        if caller in frames:
            yield frames[caller], caller.f_code, caller.f_lineno
        caller = caller.f_back


def _maps(held: list[tuple[str, Any]], size: int) -> Iterator[str]:
    for name, value in held:
        for path, item in itertools.islice(leaves(value), _SMALL):
            if is_array(item) and item.reshape(-1).shape[0] == size:
                yield f"{name}.{path}.{describe_leaf('', item).digest}"


def _plain(frame: FrameType) -> Iterator[tuple[str, str]]:
    for name, value in frame.f_locals.items():
        if (said := _said(value)) is not None:
            yield name, said
    own = getattr(frame.f_locals.get("self"), "__dict__", {})
    for name, value in list(own.items()):
        if (said := _said(value)) is not None:
            yield f"self.{name}", said


def _said(value: Any) -> str | None:
    if isinstance(value, bool | int | float | str):
        return repr(value)
    if isinstance(value, list | tuple) and len(value) <= _SMALL:
        parts = [_said(item) for item in value]
        return None if None in parts else str(parts)
    if is_array(value) and value.reshape(-1).shape[0] <= _SMALL:
        return str(value.tolist())
    return None
