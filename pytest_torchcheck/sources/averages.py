"""Sums over parts of a tensor that a function divides by what it counted for each part: averages of windows."""

from __future__ import annotations

import ast
import itertools
from typing import TYPE_CHECKING

from ..lean import dataclass
from .syntax import FUNCTIONS, nodes, own_nodes

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True, kw_only=True)
class Average:
    """A sum and a count that one loop adds to at the same places, and their quotient.

    Attributes:
        total: Name of the sum.
        count: Name of what it is divided by.
        added: The lines that add to the sum, by their first.
        counted: The lines that add to the count.
        divided: The lines of the division.
    """

    total: str
    count: str
    added: tuple[range, ...]
    counted: tuple[range, ...]
    divided: tuple[range, ...]


def averages_in(file: str) -> list[Average]:
    """Return what functions of a file average so: ``total[at] += ...; count[at] += ...; total / count``."""
    found = []
    for function in nodes(file):
        if not isinstance(function, FUNCTIONS):
            continue
        own = list(own_nodes(function))
        for loop in own:
            if isinstance(loop, ast.For | ast.While):
                found += list(_averages(_added(loop), own))
    return list(dict.fromkeys(found))  # an inner loop is one of the outer one, too


def _added(loop: ast.AST) -> dict[frozenset[str], dict[str, list[range]]]:
    """Return the lines of a loop that add to a part of a variable, by the names of the part and the variable."""
    found: dict[frozenset[str], dict[str, list[range]]] = {}
    for node in ast.walk(loop):
        if not isinstance(node, ast.AugAssign) or not isinstance(node.op, ast.Add):
            continue
        target = node.target
        if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
            names = found.setdefault(_names(target.slice), {})
            names.setdefault(target.value.id, []).append(_lines(node))
    return found


def _averages(
    added: dict[frozenset[str], dict[str, list[range]]], own: list[ast.AST]
) -> Iterator[Average]:
    """Yield each sum and count that are added to at parts of the same names, and divided."""
    if not any(len(names) > 1 for names in added.values()):
        return
    divisions = [parts for node in own if (parts := _division(node)) is not None]
    for names in added.values():
        for total, count in itertools.permutations(names, 2):
            lines = tuple(at for at, up, down in divisions if up == total and count in down)
            if lines:
                yield Average(
                    total=total,
                    count=count,
                    added=tuple(names[total]),
                    counted=tuple(names[count]),
                    divided=lines,
                )


def _division(node: ast.AST) -> tuple[range, str, frozenset[str]] | None:
    """Return the lines of a division, the variable that is divided, and those of the divisor."""
    up: ast.AST
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        up, down = node.left, node.right
    elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Div):
        up, down = node.target, node.value
    elif (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("div", "div_")
        and node.args
    ):
        up, down = node.func.value, node.args[0]
    else:
        return None
    if not isinstance(up, ast.Name):
        return None
    return _lines(node), up.id, _names(down)


def _names(node: ast.AST) -> frozenset[str]:
    return frozenset(n.id for n in ast.walk(node) if isinstance(n, ast.Name))


def _lines(node: ast.stmt | ast.expr) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)
