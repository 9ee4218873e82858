"""A result that is given a name which nothing reads afterwards, and the line that reads a sibling in its place."""

from __future__ import annotations

import ast
import os
from typing import TYPE_CHECKING

from ... import sources
from ...lean import dataclass
from ...record.tracing import find_line

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from ...findings import Location

_COMPOUND = (ast.If, ast.While, ast.For, ast.AsyncFor, ast.With, ast.AsyncWith, ast.Try, ast.Match)
_NESTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """A local variable that holds a result and is not read after it.

    Attributes:
        name: The variable.
        sibling: Another variable of the function, made in the same way, that is read more than once.
        slip: The line that reads the sibling once more, where one would expect this one.
        times: How it does: ``twice`` on the one line, or ``again``, after a line like it.
    """

    name: str
    sibling: str = ""
    slip: Location | None = None
    times: str = ""


def unread(place: Location, run: Callable[[], object]) -> Unread | None:
    """Return the variable that the statement at a place assigns, where no line that runs reads it afterwards.

    Args:
        place: A line in a function of the user's.
        run: Runs it, to tell which of the function's lines do; others, as in a branch not taken, do
            not count.
    """
    if (found := located(place)) is None or not (name := target_of(found[1])):
        return None
    function, statement = found
    ran = lines_run(place, function, run)
    if (
        ran.isdisjoint(lines_of(statement))
        or leaves(function, name)
        or any(reads(s, name) for s in running_after(function, statement, ran))
    ):
        return None
    shape = _shape(statement)
    for other in statements(function):
        sibling = target_of(other)
        if not sibling or sibling == name or _shape(other) != shape:
            continue
        readers = [s for s in running_after(function, other, ran) if reads(s, sibling)]
        twice = next((s for s in readers if reads(s, sibling) > 1 and len(_calls(s, sibling)) > 1), None)  # fmt: skip
        alike = [
            s
            for s in readers[1:]
            if any(_shape(s) == _shape(t) for t in readers[: readers.index(s)])
        ]
        slip = twice if twice is not None else next(iter(alike), None)
        if slip is not None:
            line = sources.of_line(place.file, slip.lineno, place.function)
            return Unread(
                name=name,
                sibling=sibling,
                slip=line,
                times="again" if twice is None else "twice",
            )
    return Unread(name=name)


def unread_values(place: Location, run: Callable[[], object]) -> str:
    """Return the first of two variables that a statement unpacks, where no line that runs reads it afterwards.

    ``values, indices = scores.topk(k)`` with ``values`` left unread. Arguments as of
    :func:`unread`; empty where it is read, or where the statement is no such one.
    """
    function, statement = located(place) or (None, None)
    if function is None or not isinstance(statement, ast.Assign):
        return ""
    target = statement.targets[0]
    if len(statement.targets) > 1 or not isinstance(target, ast.Tuple) or len(target.elts) != 2:
        return ""
    first = target.elts[0]
    if not isinstance(first, ast.Name) or leaves(function, first.id):
        return ""
    after = running_after(function, statement, lines_run(place, function, run))
    return "" if any(reads(s, first.id) for s in after) else first.id


def unread_names(place: Location, run: Callable[[], object]) -> tuple[str, ...]:
    """Return the variables that the statement at a place assigns, of which no line that runs reads any afterwards.

    Arguments as of :func:`unread`; ``_`` comes last.
    """
    if (found := located(place)) is None:
        return ()
    function, statement = found
    ran = lines_run(place, function, run)
    if ran.isdisjoint(lines_of(statement)):
        return ()
    after = running_after(function, statement, ran)
    names = [name for name in names_of(statement) if not leaves(function, name)]
    names = [name for name in names if not any(reads(s, name) for s in after)]
    return tuple(sorted(names, key=lambda name: name.startswith("_")))


def bound_from(place: Location, names: frozenset[str]) -> tuple[str, ...]:
    """Return the variables, read nowhere, that lines above a place assign from one of some names."""
    function = sources.function_around(place.file, place.line)
    if function is None:
        return ()
    every = [s for s in statements(function) if s.lineno < place.line]
    made = [n for s in every if any(reads(s, name) for name in names) for n in names_of(s)]
    return tuple(n for n in made if not reads(function, n) and not leaves(function, n))


def names_of(statement: ast.stmt) -> list[str]:
    """Return the variables that a statement assigns, those that it unpacks too."""
    if name := target_of(statement):
        return [name]
    if not isinstance(statement, ast.Assign) or len(statement.targets) > 1:
        return []
    return bound_names(statement.targets[0])


def bound_names(node: ast.AST) -> list[str]:
    """Return the variables that a part of a function binds."""
    own = {  # a comprehension has variables of its own
        id(n)
        for c in ast.walk(node)
        if isinstance(c, ast.comprehension)
        for n in ast.walk(c.target)
    }
    names = [n for n in ast.walk(node) if isinstance(n, ast.Name) and id(n) not in own]
    return [n.id for n in names if isinstance(n.ctx, ast.Store)]


def located(place: Location) -> tuple[ast.FunctionDef | ast.AsyncFunctionDef, ast.stmt] | None:
    """Return the function around a line and its plain statement there; None where there is none, or in a loop.

    Of two on one line, which of them is meant is not known.
    """
    function = sources.function_around(place.file, place.line)
    every = statements(function) if function is not None else []
    own = [s for s in every if place.line in lines_of(s)]
    if function is None or len(own) != 1 or in_loop(function, own[0]):
        return None
    return function, own[0]


def statements(function: ast.AST) -> list[ast.stmt]:
    """Return the plain statements of a function, in the order of the source."""
    compound = (*_COMPOUND, *_NESTED)
    return [
        n
        for n in sources.own_nodes(function)
        if isinstance(n, ast.stmt) and not isinstance(n, compound)
    ]


def target_of(statement: ast.stmt | None) -> str:
    """Return the one variable that a statement assigns, or an empty string."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
    elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
        target = statement.target
    else:
        return ""
    return target.id if isinstance(target, ast.Name) else ""


def in_loop(function: ast.AST, statement: ast.stmt) -> bool:
    """Say whether a statement stands in a loop of its function."""
    loops = [
        n for n in sources.own_nodes(function) if isinstance(n, ast.For | ast.AsyncFor | ast.While)
    ]
    return any(sources.holds(loop, statement.lineno) for loop in loops)


def leaves(function: ast.AST, name: str) -> bool:
    """Say whether the variable leaves the function by another way than a plain read."""
    for node in ast.walk(function):
        if isinstance(node, ast.Global | ast.Nonlocal) and name in node.names:
            return True
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("locals", "vars", "eval"):  # fmt: skip
            return True
        if node is not function and isinstance(node, _NESTED) and reads(node, name):
            return True
    return False


def running_after(
    function: ast.AST, statement: ast.stmt, ran: frozenset[int]
) -> list[ast.stmt | ast.expr]:
    """Return what runs behind a statement: plain statements, and the heads of compound ones."""
    found: list[ast.stmt | ast.expr] = []
    for node in sources.own_nodes(function):
        if isinstance(node, _COMPOUND):
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.withitem):
                    found.append(child.context_expr)
                elif isinstance(child, ast.expr):
                    found.append(child)
        elif isinstance(node, ast.stmt) and not isinstance(node, _NESTED):
            found.append(node)
    end = statement.end_lineno or statement.lineno
    later = [n for n in found if n.lineno > end and not ran.isdisjoint(lines_of(n))]
    return sorted(later, key=lambda node: node.lineno)


def lines_of(node: ast.stmt | ast.expr) -> range:
    """Return the lines of a statement or expression."""
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def reads(node: ast.AST, name: str) -> int:
    """Return how often a part of a function reads a variable."""
    return sum(
        (isinstance(n, ast.Name) and n.id == name and not isinstance(n.ctx, ast.Store))
        or (isinstance(n, ast.AugAssign) and getattr(n.target, "id", "") == name)
        for n in ast.walk(node)
    )


def _calls(node: ast.AST, name: str) -> list[ast.Call]:
    """Return the calls that are given a variable as such."""
    return [
        n
        for n in ast.walk(node)
        if isinstance(n, ast.Call)
        and any(
            isinstance(a, ast.Name) and a.id == name
            for a in (*n.args, *(k.value for k in n.keywords))
        )
    ]


def _shape(node: ast.AST) -> str:
    """Return the structure of a statement, without its names, attributes and constants."""
    parts = [type(n).__name__ for n in ast.walk(node)]
    return " ".join(parts)


def lines_run(place: Location, function: ast.AST, run: Callable[[], object]) -> frozenset[int]:
    """Return the lines of a function that ran."""
    lines: set[int] = set()
    first = getattr(function, "lineno", place.line)
    last = getattr(function, "end_lineno", None) or place.line

    def watcher(frame: FrameType, event: str, line: int) -> bool:
        if os.path.abspath(frame.f_code.co_filename) == place.file and first <= line <= last:
            lines.add(line)
        return False

    find_line(run, watcher)
    return frozenset(lines)
