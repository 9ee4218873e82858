"""Lines of a function that a run does not take, as far as constants decide it."""

from __future__ import annotations

import ast
import functools
import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import CodeType, FrameType

from .syntax import parsed


@functools.lru_cache(maxsize=1024)
def source_of(thing: Any) -> tuple[list[str], int, str]:
    """Return the lines of what has source, the number of the first, and their file; no lines where it has none."""
    try:
        lines, start = inspect.getsourcelines(thing)
        return lines, start, inspect.getsourcefile(thing) or ""
    except (TypeError, OSError):
        return [], 0, ""


def untaken_lines(function: Callable[..., Any] | type) -> frozenset[int]:
    """Return the lines of a function in branches that its own closure and globals rule out.

    ``if fused:`` with ``fused`` a variable of an enclosing function is decided once the function is
    made; arguments and attributes are not. Classes and functions without source have no such lines.
    """
    plain = inspect.unwrap(function) if callable(function) else function
    plain = getattr(plain, "__func__", plain)
    if not inspect.isfunction(plain):
        return frozenset()
    names = plain.__code__.co_freevars
    known: dict[str, Any] = {}
    for name, cell in zip(names, plain.__closure__ or (), strict=False):
        try:
            known[name] = cell.cell_contents
        except ValueError:  # a variable that has no value yet
            continue
    if not any(
        value is None or isinstance(value, bool | int | float | str) for value in known.values()
    ):
        return frozenset()
    return _untaken(plain.__code__, known)


def untaken_in(frame: FrameType) -> frozenset[int]:
    """Return the lines of a running function in branches that its closure rules out; see :func:`untaken_lines`."""
    code = frame.f_code
    return _untaken(code, {n: frame.f_locals[n] for n in code.co_freevars if n in frame.f_locals})


def _untaken(code: CodeType, known: Mapping[str, Any]) -> frozenset[int]:
    if (found := parsed(code)) is None:
        return frozenset()
    tree, _ = found
    stored = {
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    stored |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    known = {
        name: value
        for name, value in known.items()
        if name not in stored and (value is None or isinstance(value, bool | int | float | str))
    }
    dead: set[int] = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.If) or (taken := _truth(node.test, known)) is None:
            continue
        gone = list(node.orelse if taken else node.body)
        chosen = node.body if taken else node.orelse
        if chosen and isinstance(chosen[-1], ast.Return | ast.Raise):
            gone += _following(tree, node)
        for statement in gone:
            end = statement.end_lineno or statement.lineno
            dead.update(range(statement.lineno, end + 1))
    return frozenset(dead)


def _following(tree: ast.AST, node: ast.stmt) -> list[ast.stmt]:
    """Return the statements behind one, in its own block."""
    for parent in ast.walk(tree):
        for block in ("body", "orelse", "finalbody"):
            statements = getattr(parent, block, None)
            if isinstance(statements, list) and node in statements:
                return statements[statements.index(node) + 1 :]
    return []


def _truth(test: ast.expr, known: Mapping[str, Any]) -> bool | None:
    """Return whether a condition of known names holds, or None where that is not known."""
    if isinstance(test, ast.Name):
        return bool(known[test.id]) if test.id in known else None
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = _truth(test.operand, known)
        return None if inner is None else not inner
    return None
