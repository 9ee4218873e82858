"""Which line decides a size: from a module back through the constructors that handed the number down.

``nn.Embedding(max_length, dim)`` says nothing of the number; the line ``Encoder(..., max_length=20)``
one class further up does. The classes' source is parsed, nothing is run.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn

from ... import sources
from ...objects.weak import by_class

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...findings import Location

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
SIZE_ARGUMENTS = {
    "Embedding": "num_embeddings",
    "EmbeddingBag": "num_embeddings",
    "Linear": "in_features",
    "Bilinear": "in1_features",
    "Conv1d": "in_channels",
    "Conv2d": "in_channels",
    "Conv3d": "in_channels",
    "ConvTranspose1d": "in_channels",
    "ConvTranspose2d": "in_channels",
    "ConvTranspose3d": "in_channels",
    "LayerNorm": "normalized_shape",
    "RMSNorm": "normalized_shape",
    "BatchNorm1d": "num_features",
    "BatchNorm2d": "num_features",
    "BatchNorm3d": "num_features",
    "InstanceNorm1d": "num_features",
    "InstanceNorm2d": "num_features",
    "InstanceNorm3d": "num_features",
    "GroupNorm": "num_channels",
    "RNN": "input_size",
    "LSTM": "input_size",
    "GRU": "input_size",
    "RNNCell": "input_size",
    "LSTMCell": "input_size",
    "GRUCell": "input_size",
    "MultiheadAttention": "embed_dim",
}
"""The argument of torch's modules that sets the size of their input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a size is decided.

    Attributes:
        location: The line.
        expression: The source of the number there, such as ``20`` or ``config.max_len``.
        argument: Name of the argument that it is given to, such as ``max_length``.
        constant: Whether the line holds the number itself.
    """

    location: Location
    expression: str
    argument: str
    constant: bool


@by_class
def _parsed(cls: type) -> tuple[str, int, ast.ClassDef] | None:
    """Return file, line offset and syntax tree of a class of the user's, or None."""
    try:
        filename = inspect.getsourcefile(cls)
        lines, start = inspect.getsourcelines(cls)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (TypeError, OSError, SyntaxError):
        return None
    if filename is None or not sources.rank(filename):
        return None
    if not tree.body or not isinstance(tree.body[0], ast.ClassDef):
        return None
    return filename, max(start, 1) - 1, tree.body[0]


def _functions(cls: type) -> Iterator[tuple[str, int, str, ast.FunctionDef]]:
    """Yield file, offset, qualified name and tree of every method, the class's own ones first."""
    for base in cls.__mro__:
        found = _parsed(base)
        if found is None:
            continue
        filename, offset, tree = found
        for node in tree.body:
            if isinstance(node, ast.FunctionDef):
                yield filename, offset, f"{base.__qualname__}.{node.name}", node


def _assigned_values(function: ast.FunctionDef, name: str) -> Iterator[ast.expr]:
    for node in ast.walk(function):
        targets: list[ast.expr] = []
        value: ast.expr | None = None
        if isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        elif isinstance(node, ast.AnnAssign):
            targets, value = [node.target], node.value
        for target in targets:
            if isinstance(target, ast.Attribute) and target.attr == name and value is not None:
                yield value


def _calls(value: ast.AST, class_name: str) -> list[ast.Call]:
    """Return the calls of a class inside an expression or a file, in the order of the source."""
    found = []
    for node in ast.walk(value):
        if isinstance(node, ast.Call):
            name = (
                node.func.attr
                if isinstance(node.func, ast.Attribute)
                else getattr(node.func, "id", "")
            )
            if name.removeprefix("Lazy") == class_name:
                found.append(node)
    return sorted(found, key=lambda node: (node.lineno, node.col_offset))


def _argument(call: ast.Call, cls: type, name: str) -> ast.expr | None:
    """Return the expression that a constructor call gives to the argument ``name``."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    try:
        names = list(inspect.signature(cls.__init__).parameters)[1:]  # type: ignore[misc]
    except (TypeError, ValueError):
        return None
    place = names.index(name) if name in names else -1
    if names == ["args", "kwargs"] and SIZE_ARGUMENTS.get(cls.__name__) == name:
        place = 0  # torch's recurrent layers hand their arguments on
    if 0 <= place < len(call.args) and not any(
        isinstance(a, ast.Starred) for a in call.args[: place + 1]
    ):
        return call.args[place]
    return None


def _default(function: ast.FunctionDef, name: str) -> ast.expr | None:
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    with_default = positional[len(positional) - len(arguments.defaults) :]
    for argument, default in zip(with_default, arguments.defaults, strict=True):
        if argument.arg == name:
            return default
    for argument, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        if argument.arg == name:
            return value
    return None


def _parameters(function: ast.FunctionDef) -> set[str]:
    arguments = function.args
    return {a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)} - {
        "self"
    }


def _line(filename: str, offset: int, function: str, node: ast.expr) -> Location:
    return sources.of_line(filename, offset + node.lineno, function)


def _owners(model: nn.Module, name: str) -> list[tuple[str, nn.Module]]:
    """Return the modules on the way to ``name``, each with the attribute that leads on."""
    path: list[tuple[str, nn.Module]] = []
    current = model
    for part in name.split("."):
        following = getattr(current, part, None)
        if following is None and isinstance(current, _CONTAINERS):
            return path
        path.append((part, current))
        if not isinstance(following, nn.Module):
            return path
        current = following
    return path


def size_origin(
    model: nn.Module | None, name: str, argument: str = "", value: int | None = None
) -> Origin | None:
    """Return the line that decides a size of the module ``name``.

    Args:
        model: The root module.
        name: Qualified name of a module.
        argument: Argument of its constructor; the one of :data:`SIZE_ARGUMENTS` by default.
        value: The number that it was built with; of several assignments (in branches of an ``if``)
            the one that says this number is taken.

    Returns:
        The innermost line on which the number stands or is computed; None without source.
    """
    if model is None or not name:
        return None
    try:
        module = model.get_submodule(name)
    except AttributeError:
        return None
    argument = argument or SIZE_ARGUMENTS.get(type(module).__name__, "")
    if not argument:
        return None
    return _trace(model, name, type(module), argument, value)


def _trace(
    model: nn.Module, name: str, cls: type, argument: str, value: int | None, depth: int = 8
) -> Origin | None:
    if depth == 0:
        return None
    owners, _ = _written_in(_owners(model, name))
    if not owners:
        return None
    attribute, owner = owners[-1]
    owner_name = ".".join(part for part, _ in owners[:-1])
    origins = []
    for filename, offset, function_name, function in _functions(type(owner)):
        for expression in _assigned_values(function, attribute):
            held = getattr(owner, attribute, None)
            its = _call_of(expression, model.get_submodule(name), held)
            for call in _calls(expression, cls.__name__) if its is None else [its]:
                given = _argument(call, cls, argument)
                if given is None:
                    continue
                place = _line(filename, offset, function_name, given)
                origin = Origin(
                    location=place,
                    expression=ast.unparse(given),
                    argument=argument,
                    constant=isinstance(given, ast.Constant),
                )
                if isinstance(given, ast.Name) and given.id in _parameters(function):
                    origin = (
                        _handed_down(
                            model,
                            owner_name,
                            owner,
                            function,
                            filename,
                            offset,
                            given.id,
                            value,
                            depth,
                        )
                        or origin
                    )
                origins.append(origin)
    says = [o for o in origins if value is not None and o.constant and o.expression == str(value)]
    open_ones = [o for o in origins if not o.constant]
    return next(iter(says or open_ones or (origins if value is None else [])), None)


def _handed_down(
    model: nn.Module, owner_name: str, owner: nn.Module, function: ast.FunctionDef, filename: str,
    offset: int, parameter: str, value: int | None, depth: int,
) -> Origin | None:  # fmt: skip
    """Follow a constructor's argument to the call that gave it, or to its default."""
    if function.name != "__init__":
        return None
    if owner_name and (
        found := _trace(model, owner_name, type(owner), parameter, value, depth - 1)
    ):
        return found
    default = _default(function, parameter)
    if default is None or (
        value is not None and isinstance(default, ast.Constant) and default.value != value
    ):
        return None
    return Origin(
        location=_line(filename, offset, f"{type(owner).__qualname__}.__init__", default),
        expression=ast.unparse(default),
        argument=parameter,
        constant=isinstance(default, ast.Constant),
    )


def _has_source(cls: type) -> bool:
    return _parsed(cls) is not None


def building_line(model: nn.Module | None, name: str) -> Location | None:
    """Return the line that builds the module ``name``; inside a ``Sequential`` the line of its own call."""
    if model is None or not name:
        return None
    try:
        module = model.get_submodule(name)
    except AttributeError:
        return sources.of_parameter(model, name)
    owners, inside = _written_in(_owners(model, name))
    if inside and owners:
        attribute, owner = owners[-1]
        for filename, offset, function_name, function in _functions(type(owner)):
            for expression in _assigned_values(function, attribute):
                call = _call_of(expression, module, getattr(owner, attribute))
                if call is not None:
                    return _line(filename, offset, function_name, call)
    return sources.of_parameter(model, name)


def building_calls(model: nn.Module, name: str) -> list[tuple[Location, ast.Call]]:
    """Return the calls, each with its line, of which one builds the module ``name``: several where its attribute is assigned in branches."""
    owners, _ = _written_in(_owners(model, name))
    if not owners:
        return []
    attribute, owner = owners[-1]
    module = model.get_submodule(name)
    found = []
    for filename, offset, function_name, function in _functions(type(owner)):
        for expression in _assigned_values(function, attribute):
            its = _call_of(expression, module, getattr(owner, attribute, None))
            calls = _calls(expression, type(module).__name__) if its is None else [its]
            found += [(_line(filename, offset, function_name, call), call) for call in calls]
    return found


def given_argument(call: ast.Call, cls: type, name: str) -> ast.expr | None:
    """Return the expression that a constructor call gives to an argument; None where it gives none."""
    return _argument(call, cls, name)


def _written_in(owners: list[tuple[str, nn.Module]]) -> tuple[list[tuple[str, nn.Module]], bool]:
    """Drop torch's containers from the end of a way: what is in a Sequential is written where its own owner assigns it.

    Returns:
        The way up to the class in which the module is written, and whether a container was dropped.
    """
    known = list(owners)
    while known and isinstance(known[-1][1], _CONTAINERS) and not _has_source(type(known[-1][1])):
        known.pop()
    return known, len(known) < len(owners)


def _call_of(expression: ast.expr, module: nn.Module, held: object) -> ast.Call | None:
    """Return the call that builds a module within what builds its container; None where that is not clear.

    Args:
        expression: What is assigned.
        module: The module.
        held: What the expression gives: the module itself, or the container that holds it.
    """
    name = type(module).__name__
    calls = _calls(expression, name)
    inside = held.modules() if isinstance(held, nn.Module) else ()
    same = [one for one in inside if type(one).__name__ == name]
    place = next((i for i, one in enumerate(same) if one is module), None)
    return calls[place] if place is not None and len(calls) == len(same) else None
