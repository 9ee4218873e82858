"""Which line gives a sample the very object that it holds: a helper's ``return``, or the last line that binds a name."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Any

from ... import sources
from ...record.tracing import line_of, returns
from ..describing import leaves
from ..reading import read
from ..sample_lines import return_line
from ..snapshot import put_back

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...findings import Location
    from ...record.tracing import Return
    from ..plan import Part

_SHARED = (type(None), bool, int, str)
"""Many values are this same object, so the expression, not the object, shows the origin."""


def given_line(
    part: Part, index: int, path: str, seed: int, wrong: Callable[[Any], bool] | None = None
) -> Location | None:
    """Return the line by which the innermost function of the user's returns what a sample holds at a path.

    None where that is ``__getitem__`` itself, for a stream, or where it cannot be told. A value
    such as None counts where the call stands for it in what is returned: ``return {"weight":
    self.weight_of(i)}``, or by a name.

    Args:
        part: The dataset; put back afterwards.
        index: Of the sample.
        path: Of the leaf.
        seed: In force while reading.
        wrong: Which values count; all by default.
    """
    if not part.is_map_style:
        return None
    samples: list[Any] = []
    with put_back(part.dataset, (index,)):
        found = returns(lambda: samples.append(read(part.dataset, index, seed)))
    values = [value for p, value in leaves(samples[0]) if p == path] if samples else []
    if not values or not found:
        return None
    value, outer = values[0], found[-1]
    if wrong is not None and not wrong(value):
        return None
    if isinstance(value, _SHARED):
        one = _by_expression(found, value, path)
    else:
        one = next((each for each in found if each.value is value), None)
    if one is None or one.frame is outer.frame:
        return None
    return line_of(one.frame.f_code, one.line)


_AS_IT_IS = re.compile(
    "long|int|round|float|double|bool|byte|half|to|type|astype|item|clone|copy|contiguous|squeeze|unsqueeze|view|"
    "reshape|flatten|permute|transpose|tensor|as_tensor|from_numpy|array|asarray"
)
"""What a value keeps its name through."""


def returned_name(part: Part, index: int, path: str, seed: int = 0) -> str:
    """Return the variable or attribute that ``__getitem__`` returns at a place of a tuple: ``mask`` for ``sample[1]``.

    Empty where the sample has a key of its own there, or the source does not say.
    """
    place = return_line(part, index, seed) if part.is_map_style else None
    made = sources.statement(place.file, place.line) if place is not None else None
    function = sources.function_around(place.file, place.line) if place is not None else None
    if (
        function is None
        or not isinstance(made, ast.Return)
        or not path.rpartition(".")[2].isdigit()
    ):
        return ""
    value = made.value
    for key in path.split("."):
        value = _element(value, key)
    return _named(value, function)


def _named(value: ast.expr | None, function: ast.AST) -> str:
    """Return the variable of a function, or the attribute of ``self``, that an expression only indexes or casts."""
    while value is not None:
        if isinstance(value, ast.Attribute) and ast.unparse(value.value) == "self":
            return ast.unparse(value)
        if isinstance(value, ast.Name):
            own = (n for n in sources.own_nodes(function) if isinstance(n, ast.Name))
            stored = any(n.id == value.id and isinstance(n.ctx, ast.Store) for n in own)
            return value.id if stored or value.id in sources.parameters(function) else ""
        if isinstance(value, ast.Subscript):
            value = value.value
        elif isinstance(value, ast.Call) and _AS_IT_IS.fullmatch(sources.called(value)):
            owner = value.func.value if isinstance(value.func, ast.Attribute) else None
            first = value.args[0] if value.args else None
            of_module = owner is None or not _named(owner, function)
            value = first if of_module else owner
        else:
            return ""
    return ""


def _by_expression(found: list[Return], value: Any, path: str) -> Return | None:
    """Return the innermost function that returns a value, from the call that stands for it in the sample inwards."""
    key = path.rpartition(".")[2]
    inner = None
    frame = found[-1].frame
    for one in reversed(found):
        if one.frame.f_back is not frame or one.call is None or one.value is not value:
            continue
        file, call = one.call
        stands = _stands_for(file, call, key) if inner is None else _is_returned(file, call)
        if stands:
            inner, frame = one, one.frame
    return inner


def _is_returned(file: str, call: ast.expr) -> bool:
    statement = sources.statement(file, call.lineno)
    return isinstance(statement, ast.Return) and statement.value is call


def _stands_for(file: str, call: ast.expr, key: str) -> bool:
    """Say whether a call's value is, by the text, the element of a sample with a key: itself, or by one name."""
    statement = sources.statement(file, call.lineno)
    if _element(getattr(statement, "value", None), key) is call:
        return isinstance(statement, ast.Return | ast.Assign)
    if not isinstance(statement, ast.Assign) or statement.value is not call:
        return False
    target = statement.targets[0]
    if isinstance(target, ast.Subscript):
        return isinstance(target.slice, ast.Constant) and str(target.slice.value) == key
    name = getattr(target, "id", None)
    function = sources.function_around(file, call.lineno)
    nodes = [] if function is None or name is None else list(ast.walk(function))
    bound = [
        n
        for n in nodes
        if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store)
    ]
    ends = [n for n in nodes if isinstance(n, ast.Return | ast.Assign)]
    return len(bound) == 1 and any(
        isinstance(e := _element(n.value, key), ast.Name) and e.id == name for n in ends
    )


def _element(value: ast.expr | None, key: str) -> ast.expr | None:
    """Return the element of a tuple, list or dict, as it is written, with a key; the whole for an empty key."""
    if not key:
        return value
    if isinstance(value, ast.Tuple | ast.List) and key.isdigit() and int(key) < len(value.elts):
        return value.elts[int(key)]
    if isinstance(value, ast.Dict):
        for name, element in zip(value.keys, value.values, strict=True):
            if isinstance(name, ast.Constant) and str(name.value) == key:
                return element
    if isinstance(value, ast.Call):
        return next((k.value for k in value.keywords if k.arg == key), None)
    return None
