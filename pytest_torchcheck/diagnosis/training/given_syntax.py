"""Scopes, conditions and writes in the source that gathers parameters."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from ... import sources

if TYPE_CHECKING:
    from collections.abc import Iterator


COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.GeneratorExp)


_GROWS = ("append", "extend", "insert", "update", "add", "setdefault", "add_param_group")


def parts_of(value: ast.expr) -> list[ast.expr]:
    """Return the expressions from which another one takes its parameters."""
    if isinstance(value, ast.List | ast.Tuple | ast.Set):
        return value.elts
    if isinstance(value, ast.Dict):
        named = [
            v
            for k, v in zip(value.keys, value.values, strict=True)
            if isinstance(k, ast.Constant) and k.value == "params"
        ]
        return named or value.values
    if isinstance(value, COMPREHENSIONS):
        return [value.elt, *(generator.iter for generator in value.generators)]
    if isinstance(value, ast.BinOp):
        return [value.left, value.right]
    if isinstance(value, ast.IfExp):
        return [value.body, value.orelse]
    if isinstance(value, ast.Starred | ast.Subscript | ast.NamedExpr | ast.Await):
        return [value.value]
    return []


def written(node: ast.stmt, name: str) -> Iterator[ast.expr]:
    """Yield what a statement writes into a variable."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if (
                isinstance(target, ast.Tuple)
                and isinstance(node.value, ast.Tuple)
                and len(target.elts) == len(node.value.elts)
            ):
                yield from (
                    v
                    for t, v in zip(target.elts, node.value.elts, strict=True)
                    if name in _bases(t)
                )
            elif name in _bases(target) or (
                isinstance(target, ast.Tuple) and any(name in _bases(t) for t in target.elts)
            ):
                yield node.value
    elif isinstance(node, ast.AugAssign | ast.AnnAssign):
        if name in _bases(node.target) and node.value is not None:
            yield node.value
    elif (grown := _grown(node)) is not None and name in _bases(grown[0]):
        yield from grown[1][-1:]


def _grown(node: ast.stmt) -> tuple[ast.expr, list[ast.expr]] | None:
    """Return what a statement lets grow by a method of lists or dicts, and the method's arguments; None for others."""
    call = node.value if isinstance(node, ast.Expr) else None
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
        return (call.func.value, call.args) if call.func.attr in _GROWS else None
    return None


def written_to(node: ast.stmt) -> str:
    """Return the variable that a statement assigns or lets grow, as it is written; empty for another statement."""
    grown = _grown(node)
    target: ast.expr | None = None if grown is None else grown[0]
    if isinstance(node, ast.Assign):
        target = node.targets[0]
    elif isinstance(node, ast.AugAssign | ast.AnnAssign):
        target = node.target
    return ast.unparse(target) if isinstance(target, ast.Name | ast.Attribute) else ""


def names_given(node: ast.stmt) -> set[str]:
    """Return the variables whose values a statement assigns, returns or lets another one grow by."""
    grown = _grown(node)
    parts = grown[1] if grown is not None else [getattr(node, "value", None)]
    return {n.id for part in parts if part for n in ast.walk(part) if isinstance(n, ast.Name)}


def _bases(node: ast.expr) -> set[str]:
    """Return the variable of ``groups``, ``groups[0]`` or ``groups[0]["params"]``; of a choice of two both."""
    while isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.IfExp):
        return _bases(node.body) | _bases(node.orelse)
    return {ast.unparse(node)}


def scopes(file: str, line: int) -> list[ast.AST]:
    """Return the functions around a line, the innermost first, and the module; none where that cannot be parsed."""
    tree = sources.tree_of(file)
    return [] if tree is None else [*sources.functions_around(file, line), tree]


def tests_of(loop: ast.For, node: ast.stmt) -> Iterator[ast.expr]:
    """Yield the conditions in a loop that decide whether it comes to a statement."""
    for inner in sources.own_nodes(loop):
        if isinstance(inner, ast.If) and (
            sources.holds(inner, node.lineno)
            or any(isinstance(n, ast.Continue) for n in sources.own_nodes(inner))
        ):
            yield inner.test


def looped(value: ast.expr, loops: list[ast.For]) -> set[str]:
    """Return the variables of an expression that loops give their values, other than loops over what a name holds."""
    targets = {
        n.id
        for loop in loops
        if not isinstance(loop.iter, ast.Name | ast.Attribute)
        for n in ast.walk(loop.target)
        if isinstance(n, ast.Name)
    }
    return targets & {n.id for n in ast.walk(value) if isinstance(n, ast.Name)}


def last_line(value: ast.expr) -> int:
    """Return the line of the last element of a list that is written out, and 0 for another expression."""
    return value.elts[-1].lineno if isinstance(value, ast.List | ast.Tuple) and value.elts else 0
