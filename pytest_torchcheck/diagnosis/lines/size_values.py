"""Where the value of a layer's size comes from: the names in its expression, back to their assignments.

``nn.Embedding(int(dims.sum()), n)`` holds no number that could be changed there. The names are
followed through the constructors that hand them down and the one call that builds the model, to
where they are assigned. The source is parsed, nothing is run; where a class is built in several
places nothing is said.
"""

from __future__ import annotations

import ast
import inspect
from typing import TYPE_CHECKING

from ... import sources
from .layer_sizes import SIZE_ARGUMENTS, Scope, calls_of, given_argument, given_to

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

    from ...findings import Location

_MOST = 2
_DEPTH = 6


def value_lines(model: nn.Module | None, name: str, argument: str = "") -> tuple[Location, ...]:
    """Return up to two lines that assign what the size of a module is computed from; empty where it is not clear.

    Args:
        model: The root module.
        name: Qualified name of a module.
        argument: Argument of its constructor; the one that says its input's size by default.
    """
    if model is None or not name:
        return ()
    try:
        module = model.get_submodule(name)
    except AttributeError:
        return ()
    argument = argument or SIZE_ARGUMENTS.get(type(module).__name__, "")
    given = list(given_to(model, name, argument)) if argument else []
    if len(given) != 1:
        return ()
    found: dict[tuple[str, int], Location] = {}
    for place in _followed(model, *given[0], depth=_DEPTH):
        found.setdefault((place.file, place.line), place)
    return tuple(found.values()) if len(found) <= _MOST else ()


def _followed(
    model: nn.Module,
    expression: ast.expr,
    scope: Scope,
    owner: str | None,
    *,
    depth: int,
) -> list[Location]:
    """Return the lines that assign the names of an expression, through constructors and the call of the model.

    Args:
        model: The root module.
        expression: The expression.
        scope: Where it stands.
        owner: Name of the module in whose class it stands; None for code that builds the model.
        depth: How far to go.
    """
    found: list[Location] = []
    if depth == 0:
        return found
    tree = scope.tree
    for name in dict.fromkeys(_names(expression)):
        values = _assigned(tree, name, expression.lineno)
        if values:
            for value in values:
                deeper = (
                    _followed(model, value, scope, owner, depth=depth - 1)
                    if owner is not None
                    else []
                )
                found += [scope.line(value), *deeper]
            continue
        if (
            owner is None
            or not isinstance(tree, ast.FunctionDef)
            or name not in sources.parameters(tree)
            or tree.name != "__init__"
        ):
            continue
        handed = list(given_to(model, owner, name) if owner else _built(type(model), name))
        if len(handed) == 1:
            given, outer, above = handed[0]
            deeper = _followed(model, given, outer, above if owner else None, depth=depth - 1)
            # a name that is handed on says nothing of the value; what is computed or written there does
            found += deeper or ([] if isinstance(given, ast.Name) else [outer.line(given)])
    return found


def _built(cls: type, argument: str) -> Iterator[tuple[ast.expr, Scope, str]]:
    """Yield what the calls of a class, outside of it and in its own file, give to an argument."""
    try:
        filename = inspect.getsourcefile(cls)
    except TypeError:
        return
    tree = sources.tree_of(filename) if filename is not None else None
    if filename is None or tree is None or not sources.rank(filename):
        return
    scopes = [tree, *(n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef))]
    for call in calls_of(tree, cls.__name__):
        given = given_argument(call, cls, argument)
        around = [
            s for s in scopes if not isinstance(s, ast.FunctionDef) or sources.holds(s, call.lineno)
        ]
        if given is not None:
            scope = around[-1]
            name = scope.name if isinstance(scope, ast.FunctionDef) else ""
            yield given, Scope(filename, name, scope), ""


def _names(expression: ast.expr) -> Iterator[str]:
    """Yield the variables of an expression, without those that are called."""
    called = {id(n.func) for n in ast.walk(expression) if isinstance(n, ast.Call)}
    for node in ast.walk(expression):
        if isinstance(node, ast.Name) and id(node) not in called and node.id != "self":
            yield node.id


def _assigned(tree: ast.AST, name: str, before: int) -> list[ast.expr]:
    """Return what is assigned to a variable of a scope above a line, not within functions or classes in it."""
    return [
        value
        for node in sources.own_nodes(tree)
        if not isinstance(node, ast.AugAssign) and getattr(node, "lineno", 0) <= before
        for target, value in sources.writes(node)
        if getattr(target, "id", "") == name
    ]
