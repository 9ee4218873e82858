"""Specs and declarations as the code that makes them, and back: what is printed is what was run."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any, Final

from .. import specs as _specs
from ..specs import SpecError, TensorSpec, as_spec_tree, domains, sequences

if TYPE_CHECKING:
    from collections.abc import Mapping

NAMES: Final = (
    "Edges", "Floats", "Images", "Ints", "Labels", "Lengths", "Mask", "OneHot", "Positions",
    "Probabilities",
    "TensorSpec", "Tokens", "UnitVectors",
)  # fmt: skip
"""The specs that a text may name."""
TOP: Final = ("Floats", "Ints", "Labels", "Mask", "TensorSpec", "Tokens")
"""Those of them that ``pytest_torchcheck`` itself exports.

The others come from ``pytest_torchcheck.specs``.
"""


def code_of(value: Any) -> str:
    """Return the code of a spec, or of a tuple, list or dict of them.

    A spec of which only the shape is declared is written as that string, as is ``Floats`` of a
    shape alone.
    """
    if isinstance(value, tuple):
        inner = ", ".join(map(code_of, value))
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if isinstance(value, list):
        return f"[{', '.join(map(code_of, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_quoted(k)}: {code_of(v)}" for k, v in value.items()) + "}"
    if isinstance(value, str):
        return _quoted(value)
    if not isinstance(value, TensorSpec):
        return repr(value)
    arguments = _arguments(value)
    shape = [] if value.shape is None else [_quoted(value.shape.text)]
    if type(value) in (TensorSpec, _specs.Floats) and not arguments and shape:
        return shape[0]
    named = [f"{name}={_quoted(v) if isinstance(v, str) else repr(v)}" for name, v in arguments]
    return f"{type(value).__name__}({', '.join([*shape, *named])})"


def _quoted(value: Any) -> str:
    text = repr(value)
    return (
        f'"{value}"' if isinstance(value, str) and '"' not in value and "\\" not in text else text
    )


_USUAL: Final = {
    "Edges": "int64", "Images": "float32", "Ints": "int64", "Floats": "float32",
    "Labels": "int64", "Lengths": "int64",
    "Mask": "bool", "Positions": "int64", "Tokens": "int64",
}  # fmt: skip


def _arguments(spec: TensorSpec) -> list[tuple[str, Any]]:
    """Return the keyword arguments that are not the defaults."""
    kind, values = type(spec).__name__, spec.values
    found: dict[str, Any] = {}
    match values:
        case sequences.TokenIds():
            found = {"vocab": values.vocab, "pad": values.pad, "special": values.special}
            found |= {"side": None if values.side == "right" else values.side}
            found |= {"lengths": values.lengths}
        case sequences.ClassLabels():
            found = {"classes": values.classes, "ignore_index": values.ignore_index}
        case domains.Uniform() if kind == "Floats":
            found = {"low": values.low, "high": values.high}
        case domains.Normal() if kind == "Floats":
            found = {"mean": values.mean, "std": values.std}
        case domains.Integers() if kind == "Ints":
            found = {"low": values.low or None, "high": values.high}
        case sequences.Lengths():
            found = {"longest": values.longest}
            found |= {"shortest": None if values.shortest == 1 else values.shortest}
        case sequences.Monotone():
            found = {"strict": None if values.strict else False}
        case domains.EdgeIndex():
            found = {"nodes": values.nodes, "self_loops": None if values.self_loops else False}
        case sequences.Masks():
            found = {"kind": None if values.kind == "random" else values.kind}
            found |= {"lengths": values.lengths, "of": values.of, "pad": values.pad or None}
    dtype = str(spec.dtype).removeprefix("torch.")
    if spec.explicit_dtype and dtype != _USUAL.get(kind):
        found["dtype"] = dtype
    return [(name, value) for name, value in found.items() if value is not None and value != ()]


def specs_used(*values: Any) -> set[str]:
    """Return the names of the spec classes that the code of these values mentions."""
    used: set[str] = set()
    for value in values:
        if isinstance(value, TensorSpec):
            used |= {type(value).__name__} if "(" in code_of(value).split('"')[0] else set()
        elif isinstance(value, dict):
            used |= specs_used(*value.values())
        elif isinstance(value, tuple | list):
            used |= specs_used(*value)
    return used


def parse_specs(text: str, field: str = "inputs") -> Any:
    """Read specs from a text: a shape, or Python's code of specs.

    Args:
        text: ``B 3 64 64``; ``Tokens("B T", vocab=100)``; tuples, lists and dicts of such, with
            shapes in quotes.
        field: What to call it in an error.

    Raises:
        SpecError: It is neither.
    """
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        return as_spec_tree(text.strip(), field)
    if isinstance(node, ast.Tuple | ast.List | ast.Dict | ast.Call) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    ):
        return as_spec_tree(_read(node, field), field)
    return as_spec_tree(text.strip(), field)


def _read(node: ast.expr, field: str) -> Any:
    match node:
        case ast.Tuple(elts=parts):
            return tuple(_read(part, field) for part in parts)
        case ast.List(elts=parts):
            return [_read(part, field) for part in parts]
        case ast.Dict(keys=keys, values=values):
            return {
                _constant(key, field): _read(value, field)
                for key, value in zip(keys, values, strict=True)
                if key is not None
            }
        case ast.Call(func=ast.Name(id=name)) if name in NAMES:
            return _made(name, node, field)
        case ast.Call():
            raise SpecError(
                f"{field}: {ast.unparse(node.func)!r} is not a spec; choose from {', '.join(NAMES)}"
            )
    return _constant(node, field)


def _made(name: str, node: ast.Call, field: str) -> Any:
    given: Mapping[str, Any] = {k.arg or "**": _constant(k.value, field) for k in node.keywords}
    try:
        return getattr(_specs, name)(*(_constant(a, field) for a in node.args), **given)
    except TypeError as error:
        raise SpecError(f"{field}: {ast.unparse(node)}: {error}") from None


def _constant(node: ast.expr, field: str) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise SpecError(
            f"{field}: {ast.unparse(node)!r} is not a literal; allowed are shapes in quotes, "
            f"numbers "
            f"and specs such as Tokens('B T', vocab=100)"
        ) from None
