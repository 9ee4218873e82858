"""What a failing index was made of: the names in the expression that raises, and the numbers of the dataset behind them."""

from __future__ import annotations

import ast
import operator
from collections.abc import Sized
from dataclasses import field
from typing import TYPE_CHECKING, Any

from ... import sources
from ...lean import dataclass
from ...record.tracing import expression, find_line, line_of
from ...sources.slices import Unknown, evaluated
from ..contents import is_array
from ..snapshot import put_back
from ..validity import read

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import CodeType, FrameType

    from ...findings import Location
    from ..plan import Part

_MOST = 3
_DEPTH = 3

Bound = dict[tuple["FrameType", str], tuple[Any, int | None]]
"""A local's value, and the line that gave it; None for an argument's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Something that a failing index was made of, or what it was looked up in.

    Attributes:
        name: A variable's, or ``self.per_clip``.
        detail: What was measured of it.
        location: A line that assigned it.
        order: By which the findings name them: numbers and tables, variables, what the index was
            looked up in.
        entry: What a table gave; None where the source is no table, or that is not known.
        owner: What holds the number or the table.
    """

    name: str
    detail: str
    location: Location
    order: int
    entry: Any = field(default=None, repr=False)
    owner: Any = field(default=None, repr=False)


def index_sources(part: Part, index: int, seed: int) -> list[Source]:
    """Read a sample that fails and return what the failing index was made of, the dataset's numbers and tables first.

    Args:
        part: The dataset, put back afterwards; nothing is found for a stream.
        index: Of the sample.
        seed: In force while reading.
    """
    if not part.is_map_style:
        return []
    bound: Bound = {}
    caught: list[Exception] = []

    def watcher(frame: FrameType, event: str, line: int) -> bool:
        note(bound, frame, event, line)
        return False

    def call() -> None:
        try:
            read(part.dataset, index, seed)
        except (IndexError, KeyError) as error:
            caught.append(error)

    with put_back(part.dataset, (index,)):
        find_line(call, watcher)
    if not caught:
        return []
    found = list(_followed(caught[0], bound))
    caught[0].__traceback__ = None
    found.sort(key=lambda one: one.order)
    first = {one.location.line: one for one in reversed(found)}
    return sorted(first.values(), key=found.index)[:_MOST]


def note(bound: Bound, frame: FrameType, event: str, line: int) -> None:
    """Note which numbers and names a line gave the variables of its frame; arguments have no line."""
    for name, value in frame.f_locals.items():
        plain = _plain(value)
        if plain is not None and bound.get((frame, name), (None,))[0] != plain:
            bound[frame, name] = (plain, None if event == "call" else line)


def _followed(error: Exception, bound: Bound) -> Iterator[Source]:
    frames = []
    traceback = error.__traceback__
    while traceback is not None:
        if sources.rank(traceback.tb_frame.f_code.co_filename) == 2:
            frames.append((traceback.tb_frame, traceback.tb_lasti))
        traceback = traceback.tb_next
    inner: CodeType | None = None
    handed: list[str] = []
    for frame, instruction in reversed(frames[-_DEPTH:]):
        place = expression(frame.f_code, instruction)
        if place is None or isinstance(sources.statement(place[0], place[1].lineno), ast.Raise):
            return
        node = place[1]
        if not isinstance(node, ast.Subscript | ast.Call):
            continue  # a comprehension, whose own frame has been seen
        parts = [node.slice] if isinstance(node, ast.Subscript) else _given(node, inner, handed)
        yield from behind(frame, parts, bound)
        if isinstance(node, ast.Subscript):
            yield from _looked_up(frame, node.value)
        inner = frame.f_code
        names = [name for part in parts for name in _names(part)]
        handed = [n for n in names if bound.get((_home(frame, n), n), (None, 0))[1] is None]
        if not handed:
            return  # no argument: the caller has no part in it


def _given(call: ast.Call, inner: CodeType | None, names: list[str]) -> list[ast.expr]:
    """Return what a call gives for these parameters of the function it calls; all of it where that is not known."""
    everything = [*call.args, *(k.value for k in call.keywords)]
    if inner is None or any(isinstance(a, ast.Starred) for a in call.args):
        return everything
    parameters = [n for n in inner.co_varnames[: inner.co_argcount] if n not in ("self", "cls")]
    given = dict(zip(parameters, call.args, strict=False))
    given |= {k.arg: k.value for k in call.keywords if k.arg is not None}
    return [given[n] for n in names if n in given] or everything


def behind(
    frame: FrameType, nodes: Iterable[ast.AST], bound: Bound, gives: str = "", depth: int = _DEPTH
) -> Iterator[Source]:
    """Yield what expressions read: the dataset's numbers and tables, variables, and what these were made of."""
    for node in nodes:
        yield from _attributes(frame, node, gives)
        for name in _names(node):
            home = _home(frame, name)
            value, line = bound.get((home, name), (None, None))
            statement = sources.statement(home.f_code.co_filename, line) if line else None
            if line is None or statement is None or depth == 0:
                continue
            made = _made_of(statement, name)
            if not gives:
                place = line_of(home.f_code, line)
                yield Source(name=name, detail=f"is {value!r}", location=place, order=1)
            if made is not None:
                shown = gives or f"{name} = {value!r}"
                yield from behind(home, [made], bound, shown, depth - 1)


def _made_of(statement: ast.stmt, name: str) -> ast.expr | None:
    """Return the expression that gives a variable its value: of ``a, b = c, d`` its own alone."""
    own = [v for t, v in sources.writes(statement) if isinstance(t, ast.Name) and t.id == name]
    whole = getattr(statement, "value", None) or getattr(statement, "iter", None)
    return own[0] if own else whole


def _home(frame: FrameType, name: str) -> FrameType:
    """Return the frame that has a variable of its own: the one around a comprehension that reads it."""
    while (
        frame.f_code.co_name.startswith("<") and name in frame.f_code.co_freevars and frame.f_back
    ):
        frame = frame.f_back
    return frame


def _attributes(frame: FrameType, node: ast.AST, gives: str) -> Iterator[Source]:
    """Yield the whole numbers of an object that an expression reads, and the tables that it looks up."""
    looked_up = {id(n.value): n for n in ast.walk(node) if isinstance(n, ast.Subscript)}
    for one in ast.walk(node):
        if not isinstance(one, ast.Attribute) or not isinstance(one.value, ast.Name):
            continue
        owner = frame.f_locals.get(one.value.id)
        value = getattr(owner, "__dict__", {}).get(one.attr)
        number, entry = _plain(value), None
        if isinstance(number, int):
            found = _assigning(owner, one.attr, number, filled=False)
        elif id(one) in looked_up and (isinstance(value, Sized) or is_array(value)):
            found = _assigning(owner, one.attr, None, filled=True)
            entry = _entry(looked_up[id(one)], frame)
        else:
            continue
        said = [f"is {number}"] if isinstance(number, int) else []
        said += [f"is read for {gives}"] if gives else []
        said += ["assigned here or elsewhere"] if len(found) > 1 else []
        for place in found:
            yield Source(
                name=ast.unparse(one),
                detail=", ".join(said),
                location=place,
                order=0,
                entry=entry,
                owner=owner,
            )


def _entry(node: ast.Subscript, frame: FrameType) -> Any:
    try:
        table = evaluated(node.value, frame.f_locals)
        if is_array(table):
            return table[operator.index(evaluated(node.slice, frame.f_locals))].tolist()
        return evaluated(node, frame.f_locals)
    except (Unknown, LookupError, TypeError):
        return None


def _looked_up(frame: FrameType, node: ast.expr) -> Iterator[Source]:
    """Yield the list, dict or array of an object in which the index is looked up."""
    if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
        return
    owner = frame.f_locals.get(node.value.id)
    value: Any = getattr(owner, "__dict__", {}).get(node.attr)
    if isinstance(value, list | tuple | dict) or (is_array(value) and value.shape):
        for place in _assigning(owner, node.attr, None, filled=False)[:1]:
            detail = f"has {len(value)} entries"
            yield Source(name=ast.unparse(node), detail=detail, location=place, order=2)


def _assigning(owner: Any, name: str, value: int | None, *, filled: bool) -> list[Location]:
    """Return the line that gave an attribute its value: of several the one whose expression has it, else the two first."""
    classes = [cls for cls in type(owner).__mro__ if sources.is_own_class(cls)]
    pattern = rf"\bself\.{name}\b[^=<>!\[]*=(?!=)"
    found = [place for cls in classes for place in sources.matches(cls, pattern)]
    if filled:
        added = rf"\bself\.{name}\.(append|extend|insert)\(|\bself\.{name}\s*\+="
        found = [place for cls in classes for place in sources.matches(cls, added)] or found
    answers = {place: _gives(place, owner, value) for place in found}
    sure = [place for place, answer in answers.items() if answer]
    return sure[:2] or [place for place, answer in answers.items() if answer is None][:2]


def _gives(place: Location, owner: Any, value: int | None) -> bool | None:
    """Say whether the expression that a line assigns has a value now; None where it is not simple enough to say."""
    statement = sources.statement(place.file, place.line)
    function = sources.function_around(place.file, place.line)
    if value is None or function is None or not isinstance(statement, ast.Assign):
        return None
    if len(statement.targets) != 1 or not isinstance(statement.targets[0], ast.Attribute):
        return None
    known: dict[str, Any] = {"self": owner}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
            for target in node.targets:
                if isinstance(target, ast.Attribute) and target.attr in vars(owner):
                    known[node.value.id] = vars(owner)[target.attr]
    try:
        return bool(evaluated(statement.value, known) == value)
    except (Unknown, ArithmeticError, LookupError, TypeError, AttributeError):
        return None


def _names(node: ast.AST) -> list[str]:
    return list(dict.fromkeys(n.id for n in ast.walk(node) if isinstance(n, ast.Name)))


def _plain(value: Any) -> int | str | None:
    """Return a whole number or a short text; None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        return value if len(value) <= 40 else None
    try:
        return operator.index(value)
    except (TypeError, RuntimeError):  # no whole number
        return None
