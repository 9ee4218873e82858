"""Iterators that give their elements once and are read twice: a ``map`` that is asked ``in`` for one element after another.

An ``in`` that does not find its element reads a one-shot iterator to its end; every later one finds
nothing. The source is parsed, nothing is run.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from ... import sources
from ...findings import Culprit
from ...lean import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ...findings import Location

_ONE_SHOT = ("map", "filter", "zip", "enumerate", "iter")
_GENERATORS = ("parameters", "named_parameters", "modules", "named_modules", "children", "named_children")  # fmt: skip
_EXHAUST = ("list", "tuple", "set", "frozenset", "dict", "sum", "sorted", "max", "min", "extend", "update")  # fmt: skip
_BUILT = (ast.ListComp, ast.SetComp, ast.DictComp)


@dataclass(frozen=True, slots=True, kw_only=True)
class UsedUp:
    """An iterator that is read after nothing is left in it.

    Attributes:
        name: The variable.
        kind: What it is, with its article: ``a map object``.
        made: The line that assigns it.
        reader: The line that uses it up.
        tested: Whether that is done by ``in``, for one element after another.
    """

    name: str
    kind: str
    made: Location
    reader: Location
    tested: bool

    @property
    def cause(self) -> str:
        """Why nothing is left, as a clause."""
        how = (
            f"the first `in` on line {self.reader.line} that does not find its element exhausts it"
            if self.tested
            else f"line {self.reader.line} exhausts it"
        )
        return f"{self.name} is {self.kind}, which yields its elements only once: {how}"

    @property
    def fix(self) -> str:
        """The edit."""
        kept = "set" if self.tested else "list"
        return f"keep a {kept} on line {self.made.line}: {self.name} = {kept}(...)"

    @property
    def culprits(self) -> tuple[Culprit, ...]:
        """The line that makes it and the one that uses it up."""
        lines = ((f"is {self.kind}", self.made), ("is exhausted here", self.reader))
        return tuple(Culprit("call", self.name, d, p) for d, p in lines)


def used_up_near(place: Location, dead: frozenset[int]) -> list[UsedUp]:
    """Return the iterators that are used up in the function around a line, and in those of its file that it calls.

    Args:
        place: The line.
        dead: Lines that are known not to have run.
    """
    functions = [n for n in sources.nodes(place.file) if isinstance(n, sources.FUNCTIONS)]
    own = [n for n in functions if sources.holds(n, place.line)]
    names = {sources.called(n) for function in own for n in ast.walk(function)}
    near = [*own[-1:], *(f for f in functions if f.name in names and f not in own)]
    return [u for f in near for u in used_up(place.file, f.body[0].lineno, lambda s: s.lineno not in dead)]  # fmt: skip


def used_up(file: str, line: int, ran: Callable[[ast.stmt], bool]) -> list[UsedUp]:
    """Return the iterators of the function around a line that are used up before they are read again.

    Args:
        file: Its file.
        line: A line of it.
        ran: Whether a statement may have run.
    """
    function = sources.function_around(file, line)
    if function is None:
        return []
    statements = _statements(function, ran)
    found = []
    for name, (kind, statement) in _iterators(function, ran).items():
        user = _user(statements, statement, name)
        if user is not None:
            made, reader = (sources.of_line(file, n, function.name) for n in (statement.lineno, user[0]))  # fmt: skip
            found.append(UsedUp(name=name, kind=kind, made=made, reader=reader, tested=user[1]))
    return found


def _iterators(
    function: ast.AST, ran: Callable[[ast.stmt], bool]
) -> dict[str, tuple[str, ast.stmt]]:
    """Return the variables of a function that are given a one-shot iterator and nothing else, with the statement."""
    stored: dict[str, list[ast.stmt]] = {}
    for statement in _statements(function, ran):
        for node in _own(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                stored.setdefault(node.id, []).append(statement)
    found: dict[str, tuple[str, ast.stmt]] = {}
    for name, (first, *others) in stored.items():
        alone = isinstance(first, ast.Assign) and isinstance(first.targets[0], ast.Name)
        if alone and not others and isinstance(first, ast.Assign) and (kind := _kind(first.value)):
            found[name] = (kind, first)
    return found


def _statements(function: ast.AST, ran: Callable[[ast.stmt], bool]) -> list[ast.stmt]:
    nodes = (n for n in ast.walk(function) if isinstance(n, ast.stmt) and n is not function)
    return sorted((n for n in nodes if ran(n)), key=lambda node: (node.lineno, node.col_offset))


def _own(statement: ast.stmt) -> Iterator[ast.AST]:
    """Walk a statement without the statements within it."""
    pending: list[ast.AST] = [statement]
    while pending:
        node = pending.pop()
        yield node
        pending += [c for c in ast.iter_child_nodes(node) if not isinstance(c, ast.stmt)]


def _kind(value: ast.expr) -> str:
    if isinstance(value, ast.GeneratorExp):
        return "a generator"
    if not isinstance(value, ast.Call):
        return ""
    if isinstance(value.func, ast.Name) and value.func.id in _ONE_SHOT:
        return f"a {value.func.id} object"
    return (
        "a generator"
        if isinstance(value.func, ast.Attribute) and value.func.attr in _GENERATORS
        else ""
    )


def _user(statements: list[ast.stmt], made: ast.stmt, name: str) -> tuple[int, bool] | None:
    """Return what uses up an iterator that is read again after it, and whether that is an ``in``."""
    later = [s for s in statements if s.lineno > (made.end_lineno or made.lineno)]
    for statement in later:
        for holder in _repeated(statement):
            for node in ast.walk(holder):
                if (
                    isinstance(node, ast.Compare)
                    and isinstance(node.ops[0], ast.In | ast.NotIn)
                    and _is(node.comparators[0], name)
                ):
                    return node.lineno, True
    reads = [(s, node) for s in later for node in _own(s) if _is(node, name)]
    reads.sort(key=lambda read: (getattr(read[1], "lineno", 0), getattr(read[1], "col_offset", 0)))
    if len(reads) < 2 or not isinstance(reads[0][1], ast.Name):
        return None
    (first, node), (second, _) = reads[0], reads[1]
    if first is second or not _exhausts(first, node) or _ends(statements, first, second):
        return None
    return getattr(node, "lineno", first.lineno), False


def _is(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)


def _repeated(statement: ast.stmt) -> Iterator[ast.AST]:
    """Yield the parts of a statement that run once for each of many elements."""
    if isinstance(statement, ast.For | ast.While):
        yield from statement.body
    for node in _own(statement):
        if isinstance(node, (*_BUILT, ast.GeneratorExp)):
            yield node
        elif sources.called(node) in ("filter", "map") and isinstance(node, ast.Call):
            yield from (a for a in node.args if isinstance(a, ast.Lambda))


def _exhausts(statement: ast.stmt, node: ast.AST) -> bool:
    """Say whether a statement reads an iterator to its end."""
    if isinstance(statement, ast.For) and statement.iter is node:
        return not any(isinstance(n, ast.Break | ast.Return) for n in ast.walk(statement))
    for one in _own(statement):
        if isinstance(one, _BUILT) and one.generators[0].iter is node:
            return True
        if isinstance(one, ast.Starred) and one.value is node:
            return True
        if isinstance(one, ast.Call) and sources.called(one) in _EXHAUST:
            drawn = [a.generators[0].iter if isinstance(a, ast.GeneratorExp) else a for a in one.args]  # fmt: skip
            if node in drawn:
                return True
    return False


def _ends(statements: list[ast.stmt], first: ast.stmt, second: ast.stmt) -> bool:
    """Say whether the one statement may keep the other from running: two branches, or one that returns."""
    if isinstance(first, ast.Return):
        return True
    branches = [b for s in statements if isinstance(s, ast.If) for b in (s.body, s.orelse)]
    within = [b for b in branches if any(sources.holds(s, first.lineno) for s in b)]
    return any(not any(sources.holds(s, second.lineno) for s in b) for b in within)
