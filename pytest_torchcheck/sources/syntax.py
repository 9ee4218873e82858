"""The syntax tree of a file: the statement and the function around a line, and the names that are read."""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import textwrap
from typing import TYPE_CHECKING, Any, TypeVar

from .. import deadline
from .locations import of_line

if TYPE_CHECKING:
    from ..findings import Location


def assigned_name(place: Location) -> str:
    """Return the one variable or attribute that the statement at a place assigns to, or an empty string."""
    tree = tree_of(place.file)
    for node in ast.walk(tree) if tree is not None else ():
        if (
            isinstance(node, ast.Assign)
            and node.lineno <= place.line <= (node.end_lineno or node.lineno)
            and len(node.targets) == 1
            and isinstance(node.targets[0], ast.Name | ast.Attribute)
        ):
            return ast.unparse(node.targets[0])
    return ""


def uncalled(place: Location, method: str) -> Location | None:
    """Return a statement that names a method without calling it (``optimizer.zero_grad``), in the function around a line."""
    tree = tree_of(place.file)
    for function in ast.walk(tree) if tree is not None else ():
        if not isinstance(function, ast.FunctionDef) or not function.lineno <= place.line <= (
            function.end_lineno or 0
        ):
            continue
        for node in ast.walk(function):
            named = isinstance(node, ast.Expr) and isinstance(node.value, ast.Attribute)
            if named and node.value.attr == method:  # type: ignore[attr-defined]
                return of_line(place.file, node.lineno, place.function)  # type: ignore[attr-defined]
    return None


@functools.lru_cache(maxsize=64)
def tree_of(filename: str) -> ast.Module | None:
    """Return the syntax tree of a file, or None where it cannot be parsed; cached."""
    try:
        return ast.parse("".join(linecache.getlines(filename)))
    except SyntaxError:
        return None


def parsed(thing: Any) -> tuple[ast.Module, str] | None:
    """Return the syntax tree of a class, a function or its code, with the line numbers of the file, and that file.

    None where it has no source that can be parsed.
    """
    try:
        lines, start = inspect.getsourcelines(thing)
        tree = ast.parse(textwrap.dedent("".join(lines)))
        return ast.increment_lineno(tree, max(start, 1) - 1), inspect.getsourcefile(thing) or ""
    except (TypeError, OSError, SyntaxError):
        return None


def statement(filename: str, line: int) -> ast.stmt | None:
    """Return the innermost statement around a line of a file."""
    return _innermost(filename, line, ast.stmt)


def function_around(filename: str, line: int) -> ast.FunctionDef | None:
    """Return the innermost function around a line of a file."""
    return _innermost(filename, line, ast.FunctionDef)


_Node = TypeVar("_Node", bound=ast.stmt)


def _innermost(filename: str, line: int, kind: type[_Node]) -> _Node | None:
    deadline.keep()
    around = [
        node
        for node in ast.walk(tree_of(filename) or ast.Module(body=[], type_ignores=[]))
        if isinstance(node, kind) and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    return max(around, key=lambda node: node.lineno, default=None)


def names_read(filename: str, line: int) -> tuple[str, ...]:
    """Return the variables that the statement on a line reads, in the order of the text."""
    innermost = statement(filename, line)
    if innermost is None:
        return ()
    names = [
        node
        for node in ast.walk(innermost)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    ]
    names.sort(key=lambda node: (node.lineno, node.col_offset))
    return tuple(dict.fromkeys(node.id for node in names))
