"""What decides whether a line runs, or what it assigns: conditions and loops around it, and the names they read."""

from __future__ import annotations

import ast
import functools
from typing import TYPE_CHECKING, TypeGuard

from ... import sources
from ..loss.target_origins import helper_returns

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ...findings import Location

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_WALKS = frozenset(
    {"parameters", "named_parameters", "modules", "named_modules", "children", "named_children"}
)
_MOST = 4


@functools.lru_cache(maxsize=256)
def deciding(place: Location, most: int = _MOST, *, whether: bool = False) -> tuple[Location, ...]:
    """Return the lines that decide what a line does, or only whether it runs, the nearest first; cached.

    These are the assignments, within its function, of the names that the conditions and loops
    around the line and the value that it assigns read, with the ``return`` of functions of the file
    that they call, and the conditions themselves where they are more than one such name. A loop
    over the parts of a whole model decides nothing.
    """
    tree = sources.tree_of(place.file)
    scope = _around(tree, place.line) if tree is not None else None
    if scope is None:
        return ()
    lines: list[int] = []
    found: list[Location] = []
    for expression in _read_by(scope, place.line, whether=whether):
        names = _names(expression)
        lines += [n for name in names for n in _assignments(scope, name, expression.lineno)]
        if not isinstance(expression, ast.Name) and expression.lineno != place.line and names:
            lines.append(expression.lineno)
    for line in dict.fromkeys(lines):
        at = sources.of_line(place.file, line)
        found += [at, *(helper for _, helper in helper_returns(at))]
    return tuple(at for at in dict.fromkeys(found) if at.line != place.line)[:most]


def _around(tree: ast.Module, line: int) -> ast.AST | None:
    """Return the innermost function around a line, or the module."""
    functions = [n for n in ast.walk(tree) if isinstance(n, _FUNCTIONS) and sources.holds(n, line)]
    return max(functions, key=lambda n: (n.lineno, n.col_offset), default=tree)


def _read_by(scope: ast.AST, line: int, *, whether: bool = False) -> Iterator[ast.expr]:
    """Yield what the statement on a line assigns or is given, then the conditions and loops around it, inmost first.

    A condition above it that leaves the function or the round of a loop decides as well.
    """
    around: list[ast.AST] = [
        n
        for n in ast.walk(scope)
        if n is not scope and isinstance(n, ast.stmt) and sources.holds(n, line)
    ]
    around.sort(key=lambda n: -n.lineno)  # type: ignore[attr-defined]
    for node in around[:1]:
        yield from (n.test for n in ast.walk(node) if isinstance(n, ast.IfExp))
    for node in around:
        if isinstance(node, ast.Assign):
            yield from () if whether else (node.value,)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield from () if whether else node.value.args
        elif isinstance(node, ast.If | ast.While) and node.lineno != line:
            yield node.test
        elif isinstance(node, ast.For):
            yield node.iter
    for parent in (*around, scope):
        for block in (getattr(parent, "body", ()), getattr(parent, "orelse", ())):
            if isinstance(block, list) and any(sources.holds(n, line) for n in block):
                yield from (n.test for n in block if n.lineno < line and _leaves(n))


def _leaves(node: ast.stmt) -> TypeGuard[ast.If]:
    """Say whether a statement is a condition under which what stands below it does not run."""
    return isinstance(node, ast.If) and isinstance(
        node.body[-1], ast.Return | ast.Continue | ast.Break
    )


def _names(expression: ast.expr) -> list[str]:
    """Return the variables that an expression reads; not those of which it only asks for all parameters."""
    whole = {
        id(n.func.value)
        for n in ast.walk(expression)
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr in _WALKS
    }
    return [
        n.id
        for n in ast.walk(expression)
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load) and id(n) not in whole
    ]


def _assignments(scope: ast.AST, name: str, before: int) -> Iterator[int]:
    for node in ast.walk(scope):
        line = getattr(node, "lineno", 0)
        if line < before and any(ast.unparse(t) == name for t, _ in sources.writes(node)):
            yield line


def choosing_dimensions(place: Location | None) -> list[tuple[str, Location]]:
    """Return the variables that the calls on a line take as dimensions, with the lines that assign them."""
    tree = sources.tree_of(place.file) if place is not None else None
    if tree is None or place is None:
        return []
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and sources.holds(n, place.line)]
    given = [each for call in calls for each in _dimensions(call)]
    return _set_by(place, [each.id for each in given if isinstance(each, ast.Name)])


def dimensions_of_owner(place: Location | None, owner: object) -> list[tuple[str, Location]]:
    """Return the attributes that the calls on a line take as dimensions, with the lines that gave them their values.

    Of several assignments, as in two branches of a constructor, those count that write the value that the owner has.
    """
    found = None if place is None else sources.parsed(type(owner))
    if place is None or found is None:
        return []
    calls = (
        n
        for n in sources.nodes(place.file)
        if isinstance(n, ast.Call) and sources.holds(n, place.line)
    )
    names = {
        each.attr
        for call in calls
        for each in _dimensions(call)
        if isinstance(each, ast.Attribute)
        and isinstance(each.value, ast.Name)
        and each.value.id == "self"
    }
    return [
        (f"self.{target.attr}", sources.of_line(found[1], target.lineno))
        for node in ast.walk(found[0])
        for target, value in sources.writes(node)
        if isinstance(target, ast.Attribute) and target.attr in names
        if ast.unparse(value) == repr(getattr(owner, target.attr, None))
    ][:_MOST]


_OVER_DIMENSIONS = frozenset({
    "mean", "sum", "var", "std", "amax", "amin", "max", "min", "prod", "norm", "logsumexp", "softmax",
    "log_softmax", "cumsum", "cumprod", "argmax", "argmin", "sort", "argsort", "topk", "median", "flip",
    "roll", "transpose", "movedim", "flatten", "cat", "stack", "split", "chunk",
})  # fmt: skip
_LIBRARIES = frozenset({"torch", "F", "functional", "linalg"})


def _dimensions(call: ast.Call) -> Iterator[ast.expr]:
    """Yield what a call is given for dimensions: by keyword, or by place where the function takes little else."""
    yield from (k.value for k in call.keywords if k.arg in ("dim", "dims", "axis"))
    if sources.called(call) in _OVER_DIMENSIONS:
        owner = call.func.value if isinstance(call.func, ast.Attribute) else None
        of_library = getattr(owner, "id", getattr(owner, "attr", "")) in _LIBRARIES
        yield from call.args[1 if of_library or owner is None else 0 :]


def choosing_entries(place: Location) -> list[tuple[str, Location]]:
    """Return the variables by which a line indexes, with the lines of its function that assign them."""
    indexed = (n for n in sources.nodes(place.file) if isinstance(n, ast.Subscript))
    return _set_by(
        place, [x for n in indexed if sources.holds(n, place.line) for x in _names(n.slice)]
    )


def assigned_for(place: Location) -> list[tuple[str, Location]]:
    """Return the variables that a statement reads, with the lines of its function that assign them."""
    return _set_by(place, sources.names_read(place.file, place.line))


def assigned_above(place: Location, name: str) -> list[Location]:
    """Return the lines above a place, within its function, that assign a variable."""
    return [at for _, at in _set_by(place, [name])]


def _set_by(place: Location, names: Iterable[str]) -> list[tuple[str, Location]]:
    """Return variables with the lines above a place, within its function, that assign them."""
    tree = sources.tree_of(place.file)
    scope = _around(tree, place.line) if tree is not None else None
    if scope is None:
        return []
    return [
        (name, sources.of_line(place.file, line))
        for name in dict.fromkeys(names)
        for line in _assignments(scope, name, place.line)
    ][:_MOST]
