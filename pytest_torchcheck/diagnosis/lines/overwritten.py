"""What a function loses: a variable bound anew before anything has read it, and a result that nothing keeps."""

from __future__ import annotations

import ast
import inspect
import os
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import torch

from ... import sources
from ...lean import dataclass
from ...record.tracing import find_line
from .unread import bound_names, leaves, reads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import FrameType

    from torch import nn

    from ...findings import Location


_Piece = tuple[int, range, tuple[ast.AST, ...], tuple[str, ...]]
"""First line, lines, names read and names assigned, of a plain statement or of the head of a
compound one."""


def overwritten(place: Location, run: Callable[[], object]) -> tuple[str, Location | None]:
    """Return a variable that a statement binds, and the line that binds it anew where nothing read it before.

    In a loop that can be the place itself. No line where each value was read.

    Args:
        place: A line in a function of the user's.
        run: Runs it.
    """
    pieces = list(_pieces(place))
    first = next((n for n, (_, lines, _, _) in enumerate(pieces) if place.line in lines), None)
    if first is None:
        return "", None
    names = [name for name in pieces[first][3] if not name.startswith("_")]
    return _anew(place, pieces, first, names, run) if names else ("", None)


def argument_overwritten(
    place: Location, name: str, run: Callable[[], object]
) -> tuple[str, Location | None]:
    """Return the line that binds a parameter anew where nothing has read it, as :func:`overwritten` does.

    Args:
        place: Where the function starts.
        name: The parameter.
        run: Runs it.
    """
    return _anew(place, list(_pieces(place)), None, [name], run)


def _anew(
    place: Location,
    pieces: list[_Piece],
    start: int | None,
    names: Iterable[str],
    run: Callable[[], object],
) -> tuple[str, Location | None]:
    function = sources.function_around(place.file, place.line)
    if function is None:
        return "", None
    names = [name for name in names if not leaves(function, name)]
    for order in _orders(place, function, pieces, run) if names else ():
        starts = [-1] if start is None else [n for n, one in enumerate(order) if one == start]
        for name in names:
            for at in starts:
                line = _next_binding(pieces, order[at + 1 :], name)
                if line is not None:
                    return name, sources.of_line(place.file, line, place.function)
    return "", None


def _next_binding(pieces: list[_Piece], order: list[int], name: str) -> int | None:
    for one in order:
        line, _, read, bound = pieces[one]
        if any(reads(node, name) for node in read):
            return None
        if name in bound:
            return line
    return None


def _orders(
    place: Location,
    function: ast.FunctionDef | ast.AsyncFunctionDef,
    pieces: list[_Piece],
    run: Callable[[], object],
) -> Iterable[list[int]]:
    """Return, for each call of a function, which of its pieces ran, in their order."""
    found: dict[FrameType, list[int]] = defaultdict(list)
    known = {line: n for n, (_, lines, _, _) in reversed(list(enumerate(pieces))) for line in lines}

    def watcher(frame: FrameType, event: str, line: int) -> bool:
        code = frame.f_code
        own = code.co_name == function.name and os.path.abspath(code.co_filename) == place.file
        if own and event != "call" and line in known:
            ran = found[frame]
            # a call over several lines comes back to its first one
            if not ran or ran[-1] != known[line] or len(pieces[known[line]][1]) == 1:
                ran.append(known[line])
        return False

    find_line(run, watcher)
    return list(found.values())


def _pieces(place: Location) -> Iterator[_Piece]:
    """Iterate over what a function is made of, functions and classes within it left out."""
    function = sources.function_around(place.file, place.line)
    pending: list[ast.AST] = [] if function is None else [function]
    while pending:
        node = pending.pop()
        bodies = [child for child in ast.iter_child_nodes(node) if _is_body(child)]
        heads = [child for child in ast.iter_child_nodes(node) if not _is_body(child)]
        pending += [child for child in bodies if not isinstance(child, _NESTED)]
        if isinstance(node, _FUNCTIONS | ast.excepthandler | ast.match_case) or not isinstance(
            node, ast.stmt
        ):
            continue
        read: tuple[ast.AST, ...] = (node,) if not bodies else tuple(heads)
        last = (node.end_lineno if not bodies else max((_end(h) for h in heads), default=0)) or 0
        stored = tuple(name for head in read for name in bound_names(head))
        yield node.lineno, range(node.lineno, max(last, node.lineno) + 1), read, stored


def _is_body(node: ast.AST) -> bool:
    return isinstance(node, ast.stmt | ast.excepthandler | ast.match_case)


def _end(node: ast.AST) -> int:
    return getattr(node, "end_lineno", 0) or 0


_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
_NESTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


_COPIES = frozenset(
    {"clone", "detach", "to", "float", "double", "half", "bfloat16", "contiguous", "expand", "t", "abs"}
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """A call whose result is dropped.

    Attributes:
        method: What is called, such as ``embedding.from_pretrained``.
        location: The line.
        why: Why the call alone changes nothing, as a clause.
    """

    method: str
    location: Location
    why: str


def dropped_result(model: nn.Module, name: str) -> Dropped | None:
    """Return the statement that calls a parameter, or a module around it, and drops what that returns.

    A class method or a static one returns something new and leaves the instance as it is; so do the
    methods by which a tensor is copied or converted.

    Args:
        model: The model.
        name: Qualified name of a parameter.
    """
    parts = name.split(".")
    for depth in range(len(parts) - 1, -1, -1):
        owner = model.get_submodule(".".join(parts[:depth]))
        held = getattr(owner, parts[depth], None)
        for cls in type(owner).__mro__:
            if not sources.is_own_class(cls):
                continue
            for call, line in _statements(cls, parts[depth]):
                if why := _idle(held, call):
                    return Dropped(method=f"{parts[depth]}.{call}", location=line, why=why)
    return None


def dropped_detach(functions: Iterable[Callable[..., Any]]) -> Dropped | None:
    """Return the one statement ``name.detach()`` of some functions that keeps nothing: the gradient still flows.

    Lines in branches that the functions' own closures rule out do not count.
    """
    found: dict[tuple[str, int], Dropped] = {}
    for function in functions:
        place = sources.of_user_object(function)
        if place is None:
            continue
        dead = sources.untaken_lines(function)
        for node in sources.own_nodes(sources.function_around(place.file, place.line)):
            if not isinstance(node, ast.Expr) or node.lineno in dead:
                continue
            call = node.value
            if (
                isinstance(call, ast.Call)
                and isinstance(call.func, ast.Attribute)
                and call.func.attr == "detach"
            ):
                line = sources.of_line(place.file, node.lineno, place.function)
                found[place.file, node.lineno] = Dropped(
                    method=ast.unparse(call.func),
                    location=line,
                    why="Tensor.detach returns another tensor and changes nothing",
                )
    return next(iter(found.values())) if len(found) == 1 else None


def _statements(cls: type, attribute: str) -> Iterator[tuple[str, Location]]:
    """Iterate over the statements ``self.attribute.method(...)`` of a class: the method, and the line."""
    init = vars(cls).get("__init__")
    place = sources.of_object(init) if init is not None else None
    function = None if place is None else sources.function_around(place.file, place.line)
    if place is None or function is None:
        return
    for node in ast.walk(function):
        if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
            continue
        called = node.value.func
        if (
            isinstance(called, ast.Attribute)
            and isinstance(called.value, ast.Attribute)
            and called.value.attr == attribute
            and isinstance(called.value.value, ast.Name)
            and called.value.value.id == "self"
        ):
            yield called.attr, sources.of_line(place.file, node.lineno)


def _idle(held: Any, method: str) -> str:
    """Say why a method cannot change the thing that it is called on; empty where it may."""
    if isinstance(held, torch.Tensor):
        return f"Tensor.{method} returns another tensor" if method in _COPIES else ""
    found = inspect.getattr_static(type(held), method, None)
    if isinstance(found, classmethod | staticmethod):
        kind = "class" if isinstance(found, classmethod) else "static"
        made = f"{type(held).__name__}.{method}"
        return f"{made} is a {kind} method: it returns a new object and does not change the old one"
    return ""
