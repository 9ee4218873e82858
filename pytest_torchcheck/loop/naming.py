"""What the user's code calls an object, where it calls it."""

from __future__ import annotations

import ast
import sys
from typing import TYPE_CHECKING, Any

from torch import nn

from pytest_torchcheck import sources

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType, FrameType

    from pytest_torchcheck.findings import Location


def user_frame(*, within: CodeType | None = None) -> FrameType | None:
    """Return the user's innermost frame of the running stack.

    Args:
        within: Only frames that this function's code called: whoever called it is not meant.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and sources.rank(frame.f_code.co_filename) < 2:
        if frame.f_code is within:
            return None
        frame = frame.f_back
    return frame


def frames_within(code: CodeType) -> Iterator[FrameType]:
    """Iterate over the running frames that a function's code called, from the innermost."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not code:
        yield frame
        frame = frame.f_back


def name_in(frame: FrameType | None, thing: Any) -> str:
    """Return the name by which the user's code knows an object where it is called."""
    if frame is None or thing is None:
        return ""
    for namespace in (frame.f_locals, frame.f_globals):
        for name, value in namespace.items():
            if value is thing and name.isidentifier() and not name.startswith("__"):
                return str(name)
    for name, value in frame.f_locals.items():  # an attribute: self.optimizer, state["optimizer"]
        if isinstance(value, dict):
            if (key := next((k for k, v in value.items() if v is thing), None)) is not None:
                return f"{name}[{key!r}]"
        else:
            attributes = getattr(value, "__dict__", None)
            if isinstance(attributes, dict):
                if (
                    key := next((k for k, v in attributes.items() if v is thing), None)
                ) is not None:
                    return f"{name}.{key}"
                if isinstance(value, nn.Module):
                    child = next((n for n, m in value.named_modules() if m is thing and n), None)
                    if child is not None:
                        return f"{name}.{child}"
    return ""


def iterator_lines(filename: str, name: str, kind: str) -> tuple[Location | None, Location | None]:
    """Return the line that makes an iterator, and the next line of that function that reads it.

    Args:
        filename: Of the code that uses it.
        name: What it is called there: ``self.parameters``, ``trainable``.
        kind: Its class: ``filter``, ``map``, ``generator``.

    Returns:
        None for what no line, or more than one line, could be.
    """
    tree = sources.tree_of(filename)
    scopes = ast.FunctionDef | ast.AsyncFunctionDef | ast.Module
    made = [
        (function, node)
        for function in (ast.walk(tree) if tree is not None else ())
        if isinstance(function, scopes)
        for node in _own_nodes(function)
        if isinstance(node, ast.Assign)
        and any(ast.unparse(target) == name for target in node.targets)
        and _makes(node.value, kind)
    ]
    if len(made) != 1:
        return None, None
    function, node = made[0]
    end = node.end_lineno or node.lineno
    readers = sorted(
        one.lineno
        for one in _own_nodes(function)
        if isinstance(one, ast.Name | ast.Attribute)
        and isinstance(one.ctx, ast.Load)
        and one.lineno > end
        and ast.unparse(one) == name
    )
    reader = sources.of_line(filename, readers[0]) if readers else None
    return sources.of_line(filename, node.lineno), reader


def _own_nodes(function: ast.AST) -> list[ast.AST]:
    """Return the nodes of a function's body without those of functions and classes in it."""
    found: list[ast.AST] = []
    stack = list(ast.iter_child_nodes(function))
    while stack:
        node = stack.pop()
        found.append(node)
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            stack += ast.iter_child_nodes(node)
    return found


def _makes(value: ast.expr, kind: str) -> bool:
    """Say whether an expression could be what made an iterator of some class."""
    if isinstance(value, ast.GeneratorExp):
        return kind == "generator"
    if not isinstance(value, ast.Call):
        return False
    name = ast.unparse(value.func).rpartition(".")[2]
    if kind == "generator":  # model.parameters(), a generator function
        return name not in ("list", "tuple", "set", "dict", "filter", "map", "zip")
    return name == kind or (name == "iter" and kind.endswith("iterator"))
