"""Where a call gives a value to a parameter."""

from __future__ import annotations

import ast
import functools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from ..findings import Location
from .locations import of_line
from .syntax import tree_of


def giving_call(place: Location, values: Collection[float] = ()) -> Location | None:
    """Return the call that gives a line its values, where these are parameters of the function around it.

    ``nn.init.constant_(m.bias, value)`` within ``def init_weights(value)`` says less than
    ``self.apply(init_weights(-10.0))``. None where the line has values of its own.

    Args:
        place: The line.
        values: What was measured, such as a mean and a deviation: of several calls the one with
            such a number.
    """
    for function, sites in _giving_sites(place.file, place.line):
        fitting = [
            line
            for line, numbers in sites.items()
            if any(abs(n - v) <= 0.1 * abs(v) for n in numbers for v in values)
        ]
        if len(sites) == 1 or len(fitting) == 1:
            return of_line(place.file, (fitting or list(sites))[0], function)
    return None


@functools.lru_cache(maxsize=256)
def _giving_sites(file: str, line: int) -> list[tuple[str, dict[int, list[float]]]]:
    """Return the functions around a line whose parameters it uses, the innermost first, and the numbers of their calls."""
    tree = tree_of(file)
    if tree is None:
        return []
    nodes = list(ast.walk(tree))
    calls = [n for n in nodes if isinstance(n, ast.Call)]
    given = [a for c in calls if c.lineno == line for a in _arguments(c)]
    used = {n.id for a in given for n in ast.walk(a) if isinstance(n, ast.Name)}
    around = [
        node
        for node in nodes
        if isinstance(node, ast.FunctionDef)
        and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    found = []
    for function in reversed(around):
        own = {a.arg for a in (*function.args.args, *function.args.kwonlyargs)} - {"self"}
        if function.name.startswith("__") or not own & used:
            continue
        sites: dict[int, list[float]] = {}
        for call in calls:
            if getattr(call.func, "id", getattr(call.func, "attr", "")) == function.name:
                sites.setdefault(call.lineno, []).extend(_numbers(call))
        # what is initialised is handed over too, by apply(): only numbers tell
        found.append((function.name, {at: numbers for at, numbers in sites.items() if numbers}))
    return found


def _arguments(call: ast.Call) -> list[ast.expr]:
    return [
        *(a for a in call.args if not isinstance(a, ast.Attribute)),
        *(k.value for k in call.keywords),
    ]


def _numbers(call: ast.Call) -> list[float]:
    found = []
    for argument in _arguments(call):
        try:
            value = ast.literal_eval(argument)
        except ValueError:  # no literal
            continue
        if isinstance(value, int | float):
            found.append(float(value))
    return found
