"""Simple expressions, evaluated without running the user's code, and slices that reach past the end."""

from __future__ import annotations

import ast
import operator
from typing import TYPE_CHECKING, Any

from ..lean import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class Unknown(Exception):
    """An expression that is not evaluated."""


_OPERATORS: dict[type[ast.operator], Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def evaluated(node: ast.expr, known: Mapping[str, Any]) -> Any:
    """Return the value of an expression of known names, sizes and whole numbers; runs no code of the user's.

    Raises:
        Unknown: It holds something else.
    """
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name) and node.id in known:
        return known[node.id]
    if isinstance(node, ast.Attribute):
        owner = evaluated(node.value, known)
        if node.attr == "shape" and hasattr(owner, "__array__"):
            return tuple(owner.shape)
        held = getattr(owner, "__dict__", {})
        for table in (held, held.get("_buffers") or {}, held.get("_parameters") or {}):
            if node.attr in table:
                return table[node.attr]
    if isinstance(node, ast.Subscript):
        inner = evaluated(node.value, known)
        if isinstance(inner, list | tuple):
            return inner[evaluated(node.slice, known)]
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        sides = [_whole(evaluated(side, known)) for side in (node.left, node.right)]
        if all(isinstance(side, int) for side in sides):
            return _OPERATORS[type(node.op)](*sides)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "len":
        (argument,) = [evaluated(a, known) for a in node.args]
        if isinstance(argument, list | tuple | dict | str) or hasattr(argument, "__array__"):
            return len(argument)
    raise Unknown


def _whole(value: Any) -> Any:
    """Return the whole number of an array or tensor without dimensions as such, and anything else as it is."""
    try:
        return operator.index(value) if getattr(value, "shape", None) == () else value
    except TypeError:  # a fraction
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A slice that its tensor, array or list cuts short.

    Attributes:
        text: The expression, as ``values[start:stop]``.
        bounds: What gives its bounds: the slice's own expressions, or the variable that holds it.
        variable: Name of the variable that holds the slice; empty where it is written out.
        start: Its first index.
        stop: Its last index, and one.
        length: How many entries there are.
    """

    text: str
    bounds: tuple[ast.expr, ...]
    variable: str
    start: int
    stop: int
    length: int

    @property
    def fact(self) -> str:
        """What was measured, as a clause."""
        given = max(0, self.length - self.start)
        return f"{self.text} asks for {self.start}:{self.stop} of {self.length} entries, and gets {given}"


def cuts(statement: ast.stmt | None, known: Mapping[str, Any]) -> Iterator[Cut]:
    """Yield the slices of a simple statement that reach past the end of what they cut.

    Args:
        statement: The statement.
        known: The variables, as they were.
    """
    if statement is None or hasattr(statement, "body"):
        return
    for node in ast.walk(statement):
        if not isinstance(node, ast.Subscript):
            continue
        first = node.slice.elts[0] if isinstance(node.slice, ast.Tuple) else node.slice
        try:
            base = evaluated(node.value, known)
            length = len(base)
            if isinstance(first, ast.Slice):
                start = _whole(evaluated(first.lower, known)) if first.lower is not None else 0
                stop = _whole(evaluated(first.upper, known)) if first.upper is not None else 0
                bounds = tuple(each for each in (first.lower, first.upper) if each is not None)
                variable = ""
            else:
                given, bounds, variable = evaluated(first, known), (first,), ast.unparse(first)
                if not isinstance(given, slice):
                    continue
                start, stop = given.start or 0, given.stop
        except (Unknown, ArithmeticError, LookupError, TypeError, AttributeError, ValueError):
            continue
        if isinstance(start, int) and isinstance(stop, int) and 0 <= start < stop > length:
            yield Cut(
                text=ast.unparse(node),
                bounds=bounds,
                variable=variable,
                start=start,
                stop=stop,
                length=length,
            )
