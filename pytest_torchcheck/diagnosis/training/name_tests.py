"""What a condition on a parameter's name says of one name: worked out from the source, and nothing is run."""

from __future__ import annotations

import ast
import operator
from typing import TYPE_CHECKING, Any

from ... import sources
from ..lines.assigned import assigned

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...findings import Location

_METHODS = frozenset({"startswith", "endswith", "lower", "upper", "split", "removeprefix"})
_COMPARES: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}


class _Unknown(Exception):
    """The expression reads more than a name and literals."""


def value_for(expression: ast.expr, place: Location, variable: str, name: str) -> Any:
    """Return an expression's value with a variable bound to a name; None where it reads anything but that and literals.

    Args:
        expression: Comparisons, ``in``, ``startswith`` and ``endswith``, ``any`` and ``all`` over
            literals, joined.
        place: Its line, above which the names of literals are looked for.
        variable: What the line calls the name.
        name: Of a parameter.
    """
    try:
        return _value(expression, place, {variable: name})
    except (_Unknown, TypeError, ValueError):
        return None


def keeps_on(place: Location, name: str) -> bool:
    """Say that a line which sets ``requires_grad`` in a loop over named parameters cannot switch this one off.

    It gives True for the name, or a condition around it is not met by the name.
    """
    loop = next(reversed(sources.around(place.file, place.line, ast.For)), None)
    variable = name_variable(loop.target, loop.iter) if loop is not None else ""
    if loop is None or not variable or rebinds(loop.body, variable):
        return False
    for node in (n for n in ast.walk(loop) if isinstance(n, ast.If) and n.lineno != place.line):
        body, other = (
            any(sources.holds(n, place.line) for n in part) for part in (node.body, node.orelse)
        )
        met = value_for(node.test, place, variable, name)
        if met is not None and (body or other) and bool(met) is not body:
            return True
    given = next(
        (
            _given(n)
            for n in ast.walk(loop)
            if getattr(n, "lineno", 0) == place.line and _given(n) is not None
        ),
        None,
    )
    return given is not None and value_for(given, place, variable, name) is True


def name_variable(target: ast.expr, walked: ast.expr) -> str:
    """Return the variable that holds the names in a walk over the named parameters of a whole model, or empty."""
    whole = (
        isinstance(walked, ast.Call)
        and isinstance(walked.func, ast.Attribute)
        and walked.func.attr == "named_parameters"
        and isinstance(walked.func.value, ast.Name)
        and not walked.args
    )
    if not whole or not isinstance(target, ast.Tuple) or not isinstance(target.elts[0], ast.Name):
        return ""
    return target.elts[0].id


def rebinds(body: list[ast.stmt], variable: str) -> bool:
    """Say whether statements give a variable another value."""
    nodes = (n for part in body for n in ast.walk(part))
    return any(
        isinstance(n, ast.Name) and n.id == variable and isinstance(n.ctx, ast.Store) for n in nodes
    )


def _given(node: ast.AST) -> ast.expr | None:
    """Return what a statement or call gives to ``requires_grad``."""
    if isinstance(node, ast.Assign):
        flag = any(isinstance(t, ast.Attribute) and t.attr == "requires_grad" for t in node.targets)
        return node.value if flag else None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        given = [*node.args, *(k.value for k in node.keywords)]
        return given[0] if node.func.attr == "requires_grad_" and len(given) == 1 else None
    return None


def _value(node: ast.expr, place: Location, known: dict[str, Any]) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return known[node.id] if node.id in known else _literal(node.id, place)
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return tuple(_value(each, place, known) for each in node.elts)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return not _value(node.operand, place, known)
    if isinstance(node, ast.BoolOp):
        return _joined(node, place, known)
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARES:
        left, right = (_value(n, place, known) for n in (node.left, node.comparators[0]))
        return _COMPARES[type(node.ops[0])](left, right)
    if isinstance(node, ast.Call) and not node.keywords:
        return _called(node, place, known)
    raise _Unknown


def _joined(node: ast.BoolOp, place: Location, known: dict[str, Any]) -> bool:
    """Return what ``and`` or ``or`` gives; one part that decides it is enough, whatever the others read."""
    decides = isinstance(node.op, ast.Or)
    unknown = False
    for part in node.values:
        try:
            if bool(_value(part, place, known)) is decides:
                return decides
        except _Unknown:
            unknown = True
    if unknown:
        raise _Unknown
    return not decides


def _called(node: ast.Call, place: Location, known: dict[str, Any]) -> Any:
    function = node.func
    if isinstance(function, ast.Attribute) and function.attr in _METHODS:
        text = _value(function.value, place, known)
        if isinstance(text, str):
            return getattr(text, function.attr)(*(_value(a, place, known) for a in node.args))
    if isinstance(function, ast.Name) and function.id in ("any", "all") and len(node.args) == 1:
        return {"any": any, "all": all}[function.id](_each(node.args[0], place, known))
    raise _Unknown


def _each(node: ast.expr, place: Location, known: dict[str, Any]) -> list[Any]:
    """Return the elements of a comprehension of one loop without a condition."""
    if not isinstance(node, ast.GeneratorExp | ast.ListComp) or len(node.generators) != 1:
        raise _Unknown
    loop = node.generators[0]
    if loop.ifs or not isinstance(loop.target, ast.Name):
        raise _Unknown
    variable = loop.target.id
    things = _value(loop.iter, place, known)
    return [_value(node.elt, place, {**known, variable: thing}) for thing in things]


def _literal(name: str, place: Location) -> Any:
    """Return what a name was given, where that is a text, or texts, written out."""
    made = assigned(place, name)
    try:
        value = ast.literal_eval(made.value) if made is not None else None
    except ValueError:
        value = None
    if not isinstance(value, str | tuple | list | set) or not all(isinstance(v, str) for v in value):  # fmt: skip
        raise _Unknown
    return value
