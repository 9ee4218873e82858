"""Which line keeps weights without a copy of them, read off the source of the line that brings them back."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from ... import sources

if TYPE_CHECKING:
    from ...findings import Location

_COPYING = re.compile(r"clone|copy|\bitem\(|tolist|numpy")
_FILLING = ("append", "extend", "update", "setdefault", "insert")


def kept_as_it_is(place: Location) -> tuple[str, Location | None]:
    """Return what a copying line copies from, and the one line of the file that fills it without copying.

    Nothing is run. None where no line, or more than one, could be meant.
    """
    tree = sources.tree_of(place.file)
    source = None if tree is None else _source(tree, place.line)
    if tree is None or source is None:
        return "", None
    container = ast.unparse(source)
    last = container.rpartition(".")[2]
    around = sorted(
        (n for n in ast.walk(tree) if isinstance(n, _SCOPES) and sources.holds(n, place.line)),
        key=lambda node: -node.lineno,
    )
    for scope in (*around, tree):
        filled = [value for node in ast.walk(scope) if (value := _filled(node, last)) is not None]
        if filled:
            kept = {value.lineno for value in filled if not _COPYING.search(ast.unparse(value))}
            line = sources.of_line(place.file, kept.pop()) if len(kept) == 1 else None
            return container, line
    return container, None


_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def _source(tree: ast.Module, line: int) -> ast.expr | None:
    """Return the expression that a copying on a line reads its values out of: a name or an attribute."""
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("copy_", "_foreach_copy_", "load_state_dict")
        and sources.holds(node, line)
    ]
    called = getattr(calls[0].func, "attr", "") if len(calls) == 1 else ""
    place = 1 if called == "_foreach_copy_" else 0
    if not called or len(calls[0].args) <= place:
        return None
    given = calls[0].args[place]
    if called == "load_state_dict" and isinstance(given, ast.Call):
        return None  # made where it is loaded
    found = _held(given)
    loop = max(
        (
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.For) and sources.holds(node, line)
        ),
        key=lambda node: node.lineno,
        default=None,
    )
    if isinstance(found, ast.Name) and loop is not None:
        found = _looped(loop, found.id) or found
    return found if isinstance(found, ast.Name | ast.Attribute) else None


def _held(node: ast.expr) -> ast.expr:
    """Strip subscripts, ``.data`` and calls of methods off an expression."""
    while True:
        if isinstance(node, ast.Subscript) or (
            isinstance(node, ast.Attribute) and node.attr == "data"
        ):
            node = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            node = node.func.value
        else:
            return node


def _looped(loop: ast.For, name: str) -> ast.expr | None:
    """Return what a variable of a loop comes out of."""
    target, given = loop.target, loop.iter
    if isinstance(target, ast.Tuple) and isinstance(given, ast.Call):
        place = next((i for i, t in enumerate(target.elts) if ast.unparse(t) == name), None)
        if place is None:
            return None
        if ast.unparse(given.func) == "zip" and place < len(given.args):
            return _held(given.args[place])
        return _held(given)
    return _held(given) if ast.unparse(target) == name else None


def _filled(node: ast.AST, last: str) -> ast.expr | None:
    """Return what a statement puts into a container of this name, or None."""

    def is_it(expression: ast.expr) -> bool:
        return ast.unparse(expression).rpartition(".")[2] == last

    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Subscript) and is_it(target.value):
                return node.value
            if isinstance(target, ast.Name | ast.Attribute) and is_it(target):
                return None if _empty(node.value) else node.value
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in _FILLING
        and is_it(node.func.value)
        and node.args
    ):
        return node.args[-1]
    return None


def _empty(value: ast.expr) -> bool:
    """Say whether an expression makes an empty container, or none."""
    text = ast.unparse(value)
    return text in ("{}", "[]", "()", "None", "dict()", "list()", "set()") or "defaultdict" in text
