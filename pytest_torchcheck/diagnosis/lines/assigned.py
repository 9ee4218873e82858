"""Where a name that a line uses got its value: the one assignment of it that could have run, read off the source.

Nothing is run. Where two assignments could have given the value, none is named.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from ... import sources
from ...lean import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...findings import Location

_Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.Module | ast.ClassDef
_DEPTH = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """What a name was given.

    Attributes:
        value: The expression.
        location: Its line.
    """

    value: ast.expr
    location: Location


def assigned(
    place: Location, name: str, *, made: str = "", without: frozenset[int] = frozenset()
) -> Assigned | None:
    """Return what a name that a line uses was given; None where that is not certain.

    A variable is looked for in the function around the line, above it, then in the functions around
    that one and in the module; ``self.name`` in the class around the line, and an entry of a dict
    (``state['scaler']``) in the outermost function. Plain copies of a name are followed.

    Args:
        place: The line that uses it.
        name: As it is written there.
        made: Name of the class of the object: assignments that call it are preferred.
        without: Lines that are known not to have run.
    """
    tree = sources.tree_of(place.file)
    if tree is None or not sources.rank(place.file):
        return None
    line = place.line
    for _ in range(_DEPTH):
        found = _one(place.file, tree, line, name, made, without)
        if found is None:
            return None
        if not isinstance(found, ast.Name):
            location = sources.of_line(place.file, found.lineno, place.function)
            return Assigned(value=found, location=location)
        name, line = found.id, found.lineno
    return None


def _one(
    file: str, tree: ast.Module, line: int, name: str, made: str, without: frozenset[int]
) -> ast.expr | None:
    around: list[_Scope] = [*sources.functions_around(file, line)]
    if name.startswith("self."):
        classes = sources.around(file, line, ast.ClassDef)[-1:]
        return next(
            (_chosen(list(_values(c, name, without, deep=True)), made, without) for c in classes),
            None,
        )
    if not name.isidentifier():
        outer: _Scope = around[-1] if around else tree
        return _chosen(list(_values(outer, name, without, deep=True)), made, without)
    for place, scope in enumerate((*around, tree)):
        values = [
            (top, value)
            for top, value in _values(scope, name, without)
            if place or value.lineno <= line
        ]
        if values:
            return _chosen(values, made, without)
        if name in _parameters(scope):
            return None
    return None


def _parameters(scope: _Scope) -> set[str]:
    stars = (
        () if not isinstance(scope, sources.FUNCTIONS) else (scope.args.vararg, scope.args.kwarg)
    )
    return {*sources.parameters(scope), *(a.arg for a in stars if a is not None)}


def _certain(node: ast.AST, without: frozenset[int]) -> list[ast.stmt]:
    """Return the statements of a block that run whenever it does: those of a branch whose alternative cannot."""
    if isinstance(node, ast.With):
        return node.body
    if isinstance(node, ast.If) and node.orelse:
        for taken, other in ((node.body, node.orelse), (node.orelse, node.body)):
            if all(statement.lineno in without for statement in other):
                return taken
    return []


def _values(
    scope: _Scope, name: str, without: frozenset[int], *, deep: bool = False
) -> Iterator[tuple[bool, ast.expr]]:
    """Yield what a scope assigns to a name, in the order of the source, and whether it does so in any case."""
    found: list[tuple[bool, ast.expr]] = []
    pending: list[tuple[bool, ast.AST]] = [(True, child) for child in ast.iter_child_nodes(scope)]
    while pending:
        top, node = pending.pop()
        if not isinstance(node, ast.AugAssign):
            found += [(top, v) for t, v in sources.writes(node) if ast.unparse(t) == name]
        if deep or not isinstance(node, (*sources.FUNCTIONS, ast.ClassDef, ast.Lambda)):
            sure = {id(child) for child in _certain(node, without)} if top else set()
            pending += [(id(child) in sure, child) for child in ast.iter_child_nodes(node)]
    found.sort(key=lambda item: (item[1].lineno, item[1].col_offset))
    yield from found


def _chosen(
    values: list[tuple[bool, ast.expr]], made: str, without: frozenset[int]
) -> ast.expr | None:
    values = [(top, value) for top, value in values if value.lineno not in without]
    if made:
        making = [
            item for item in values if any(sources.called(n) == made for n in ast.walk(item[1]))
        ]
        values = making or values
    # one that stands in no branch overrides those above it
    last = max((i for i, (top, _) in enumerate(values) if top), default=0)
    values = values[last:]
    return values[0][1] if len(values) == 1 else None
