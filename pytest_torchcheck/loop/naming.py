"""What the user's code calls an object, where it calls it."""

from __future__ import annotations

import ast
import gc
import sys
import types
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch import nn

from .. import sources

if TYPE_CHECKING:
    from types import CodeType, FrameType

    from ..findings import Location


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


def name_called_on(frame: FrameType | None, thing: Any) -> str:
    """Return the variable that the running line names as an object; else any that holds it, as :func:`name_in` does.

    Of several names of one loss, the one that ``backward()`` is called on is where the loss was last assigned.
    """
    if frame is not None:
        for name in sources.names_read(frame.f_code.co_filename, frame.f_lineno):
            if frame.f_locals.get(name) is thing:
                return name
    return name_in(frame, thing)


def is_spent(given: Any) -> bool | None:
    """Say whether a generator, or what a filter or map goes through, had given its last element; None where not known."""
    if isinstance(given, types.GeneratorType):
        return given.gi_frame is None
    if isinstance(given, filter | map):
        inner = [x for r in gc.get_referents(given) for x in (r if isinstance(r, tuple) else (r,))]
        known = [is_spent(x) for x in inner if isinstance(x, Iterator)]
        return any(known) if known and None not in known else None
    return None


_MAKERS = frozenset(
    ("list", "tuple", "set", "dict", "sorted", "filter", "map", "zip", "enumerate", "reversed", "iter")
)  # fmt: skip
"""What makes a container, or an iterator of its own class."""


def iterator_lines(filename: str, name: str, given: Any) -> tuple[Location | None, Location | None]:
    """Return the line that makes an iterator, and the next line of that function that reads it.

    A generator expression, and a filter or map by a lambda, say themselves where they were made.
    Else it is the only line that gives such a thing to the name, or to a variable that the name is
    given.

    Args:
        filename: Of the code that uses it.
        name: What it is called there: ``self.parameters``, ``held['trainable']``; empty where it
            has no name.
        given: The iterator.

    Returns:
        None for what no line, or more than one line, could be.
    """
    code = _code_of(given)
    file, line = (code.co_filename, code.co_firstlineno) if code is not None else (filename, 0)
    kind = type(given).__name__
    scopes = ast.FunctionDef | ast.AsyncFunctionDef | ast.Module
    made: list[tuple[ast.AST, ast.Assign, frozenset[str]]] = []
    for scope in (n for n in sources.nodes(file) if isinstance(n, scopes)):
        assigned = [n for n in sources.own_nodes(scope) if isinstance(n, ast.Assign)]
        for node in assigned:
            names = _copies(node, assigned)
            if _makes(node.value, kind) and (sources.holds(node, line) if line else name in names):
                made.append((scope, node, names))
    if len(made) != 1:
        return (sources.of_line(file, line) if line else None), None
    function, node, names = made[0]
    end = node.end_lineno or node.lineno
    nodes = list(sources.own_nodes(function))
    copied = {id(n.value) for n in nodes if isinstance(n, ast.Assign)}
    readers = sorted(
        one.lineno
        for one in nodes
        if isinstance(one, ast.Name | ast.Attribute | ast.Subscript)
        and isinstance(one.ctx, ast.Load)
        and one.lineno > end
        and id(one) not in copied
        and ast.unparse(one) in names
    )
    reader = sources.of_line(file, readers[0]) if readers else None
    return sources.of_line(file, node.lineno), reader


def _code_of(given: Any) -> CodeType | None:
    """Return the user's code of a generator expression, or of the lambda that stands in a filter or map."""
    if isinstance(given, types.GeneratorType):
        found = given.gi_code if given.gi_code.co_name == "<genexpr>" else None
    elif isinstance(given, filter | map):
        lambdas = [
            f.__code__
            for f in gc.get_referents(given)
            if isinstance(f, types.FunctionType) and f.__code__.co_name == "<lambda>"
        ]
        found = lambdas[0] if lambdas and _stands_in(lambdas[0], type(given).__name__) else None
    else:
        found = None
    return found if found is not None and sources.rank(found.co_filename) == 2 else None


def _stands_in(code: CodeType, kind: str) -> bool:
    """Say whether a lambda is written within the call of a filter or map that was given it."""
    return any(
        isinstance(call, ast.Call)
        and ast.unparse(call.func) == kind
        and any(isinstance(a, ast.Lambda) and a.lineno == code.co_firstlineno for a in call.args)
        for call in sources.nodes(code.co_filename)
    )


def _copies(node: ast.Assign, assigned: list[ast.Assign]) -> frozenset[str]:
    """Return what an assignment gives its value to, and what plain copies of that give it to later."""
    names = {ast.unparse(target) for target in node.targets}
    for other in sorted(assigned, key=lambda n: n.lineno):
        if other.lineno > node.lineno and ast.unparse(other.value) in names:
            names |= {ast.unparse(target) for target in other.targets}
    return frozenset(names)


def _makes(value: ast.expr, kind: str) -> bool:
    """Say whether an expression could be what made an iterator of some class."""
    if isinstance(value, ast.GeneratorExp):
        return kind == "generator"
    if not isinstance(value, ast.Call):
        return False
    words = ast.unparse(value.func).split(".")  # chain.from_iterable among them
    if kind in words or (words[-1] == "iter" and kind.endswith("iterator")):
        return True
    return words[-1] not in _MAKERS  # model.parameters(), a function of the user's
