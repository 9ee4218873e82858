"""What a condition on a parameter's name gives for one name; only comparisons of the name with literals are evaluated."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from ... import sources
from ..lines.assigned import assigned

if TYPE_CHECKING:
    from ...findings import Location

_METHODS = frozenset({"startswith", "endswith", "lower", "upper", "split", "removeprefix"})
_KNOWN: dict[str, Any] = {"any": any, "all": all}
_HARMLESS = (ast.expr_context, ast.boolop, ast.cmpop, ast.unaryop, ast.comprehension, ast.Constant, ast.Attribute,
             ast.Tuple, ast.List, ast.Set, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.Name, ast.Call, ast.GeneratorExp,
             ast.ListComp)  # fmt: skip


def value_for(expression: ast.expr, place: Location, variable: str, name: str) -> Any:
    """Return an expression's value with a variable bound to a name; None where it reads anything but that and literals.

    Args:
        expression: Comparisons, methods of texts, ``any`` and ``all`` over literals, joined.
        place: Its line, above which the names of literals are looked for.
        variable: What the line calls the name.
        name: Of a parameter.
    """
    known = {**_KNOWN, variable: name}
    nodes = list(ast.walk(expression))
    bound = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    called = [n.func for n in nodes if isinstance(n, ast.Call)]
    for node in nodes:
        if not isinstance(node, _HARMLESS):
            return None
        if isinstance(node, ast.Attribute) and (node not in called or node.attr not in _METHODS):
            return None
        if isinstance(node, ast.Name) and node.id not in {*known, *bound}:
            made = assigned(place, node.id)
            try:
                known[node.id] = ast.literal_eval(made.value) if made is not None else None
            except ValueError:
                return None
            if known[node.id] is None:
                return None
    try:
        code = compile(ast.Expression(expression), place.file, "eval")
        return eval(code, {"__builtins__": {}, **known})  # texts and their methods, as seen above
    except (TypeError, ValueError, NameError):
        return None


def keeps_on(place: Location, name: str) -> bool:
    """Say that a line which sets ``requires_grad`` in a loop over named parameters cannot switch this one off.

    It gives True for the name, or a condition around it is not met by the name.
    """
    loop = next(reversed(sources.around(place.file, place.line, ast.For)), None)
    variable = name_variable(loop.target, loop.iter) if loop is not None else ""
    if loop is None or not variable or rebinds(loop.body, variable):
        return False
    for node in ast.walk(loop):
        if (
            isinstance(node, ast.If)
            and node.lineno != place.line
            and sources.holds(node, place.line)
        ):
            met = value_for(node.test, place, variable, name)
            inside = any(sources.holds(n, place.line) for n in node.body)
            if met is not None and bool(met) is not inside:
                return True
    given = (_given(n) for n in ast.walk(loop) if getattr(n, "lineno", 0) == place.line)
    value = next(filter(None, given), None)
    return value is not None and value_for(value, place, variable, name) is True


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
