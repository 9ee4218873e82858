"""Which line decides a size: from a module back through the constructors that handed the number down.

``nn.Embedding(max_length, dim)`` says nothing of the number; the line ``Encoder(..., max_length=20)``
one class further up does. The classes' source is parsed, nothing is run.
"""

from __future__ import annotations

import ast
import inspect
from typing import TYPE_CHECKING, NamedTuple

from torch import nn

from ... import sources
from ...lean import dataclass
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


class Scope(NamedTuple):
    """A function of the user's, or a module of Python.

    Attributes:
        file: Its file.
        name: Its qualified name; empty for a module.
        tree: Its syntax tree.
    """

    file: str
    name: str
    tree: ast.AST

    def line(self, node: ast.expr) -> Location:
        """Return the line of an expression in it."""
        return sources.of_line(self.file, node.lineno, self.name)


class Built(NamedTuple):
    """A call that builds a module, or one of several of which one does.

    Attributes:
        call: The call.
        scope: The method that makes it.
        path: Qualified name of the module whose method it is.
        certain: Whether it is the very call of the module.
    """

    call: ast.Call
    scope: Scope
    path: str
    certain: bool


@by_class
def _parsed(cls: type) -> tuple[str, ast.ClassDef] | None:
    """Return file and syntax tree of a class of the user's, or None."""
    tree, filename = sources.parsed(cls) or (None, "")
    if tree is None or not sources.rank(filename):
        return None
    return (filename, tree.body[0]) if isinstance(tree.body[0], ast.ClassDef) else None


def _functions(cls: type) -> Iterator[Scope]:
    """Yield every method, the class's own ones first."""
    for base in cls.__mro__:
        if (found := _parsed(base)) is None:
            continue
        filename, tree = found
        for node in tree.body:
            if isinstance(node, ast.FunctionDef):
                yield Scope(filename, f"{base.__qualname__}.{node.name}", node)


def _assigned_values(function: ast.AST, name: str) -> Iterator[ast.expr]:
    for node in ast.walk(function):
        for target, value in sources.writes(node):
            if isinstance(target, ast.Attribute) and target.attr == name:
                yield value


def calls_of(value: ast.AST, class_name: str) -> list[ast.Call]:
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


def given_argument(call: ast.Call, cls: type, name: str) -> ast.expr | None:
    """Return the expression that a constructor call gives to an argument; None where it gives none."""
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
    return _trace(model, name, argument, value)


def building_calls(model: nn.Module, name: str) -> Iterator[Built]:
    """Yield the calls of which one builds the module ``name``: several where its attribute is assigned in branches."""
    owners, _ = _written_in(_owners(model, name))
    if not owners:
        return
    attribute, owner = owners[-1]
    path = ".".join(part for part, _ in owners[:-1])
    module = model.get_submodule(name)
    for scope in _functions(type(owner)):
        for expression in _assigned_values(scope.tree, attribute):
            its = _call_of(expression, module, getattr(owner, attribute, None))
            for call in calls_of(expression, type(module).__name__) if its is None else [its]:
                yield Built(call, scope, path, its is not None)


def given_to(model: nn.Module, name: str, argument: str) -> Iterator[tuple[ast.expr, Scope, str]]:
    """Yield what the calls that build a module give to an argument, where they stand, and the owner's name."""
    cls = type(model.get_submodule(name))
    for built in building_calls(model, name):
        given = given_argument(built.call, cls, argument)
        if given is not None:
            yield given, built.scope, built.path


def _trace(
    model: nn.Module, name: str, argument: str, value: int | None, depth: int = 8
) -> Origin | None:
    if depth == 0:
        return None
    origins = []
    for given, scope, owner in given_to(model, name, argument):
        origin: Origin | None = None
        function = scope.tree
        if (
            isinstance(given, ast.Name)
            and isinstance(function, ast.FunctionDef)
            and given.id in sources.parameters(function)
        ):
            origin = _handed_down(model, owner, scope, function, given.id, value, depth)
        origins.append(origin or _origin(scope, given, argument))
    says = [o for o in origins if value is not None and o.constant and o.expression == str(value)]
    open_ones = [o for o in origins if not o.constant]
    return next(iter(says or open_ones or (origins if value is None else [])), None)


def _origin(scope: Scope, given: ast.expr, argument: str) -> Origin:
    return Origin(
        location=scope.line(given),
        expression=ast.unparse(given),
        argument=argument,
        constant=isinstance(given, ast.Constant),
    )


def _handed_down(
    model: nn.Module,
    owner: str,
    scope: Scope,
    function: ast.FunctionDef,
    parameter: str,
    value: int | None,
    depth: int,
) -> Origin | None:
    """Follow a constructor's argument to the call that gave it, or to its default."""
    if function.name != "__init__":
        return None
    if owner and (found := _trace(model, owner, parameter, value, depth - 1)):
        return found
    default = sources.default_of(function, parameter)
    if default is None or (
        value is not None and isinstance(default, ast.Constant) and default.value != value
    ):
        return None
    return _origin(scope, default, parameter)


def _has_source(cls: type) -> bool:
    return _parsed(cls) is not None


def building_line(model: nn.Module | None, name: str) -> Location | None:
    """Return the line that builds the module ``name``; inside a ``Sequential`` the line of its own call."""
    if model is None or not name:
        return None
    try:
        model.get_submodule(name)
    except AttributeError:
        return sources.of_parameter(model, name)
    if _written_in(_owners(model, name))[1]:
        for built in building_calls(model, name):
            if built.certain:
                return built.scope.line(built.call)
    return sources.of_parameter(model, name)


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
    calls = calls_of(expression, name)
    inside = held.modules() if isinstance(held, nn.Module) else ()
    same = [one for one in inside if type(one).__name__ == name]
    place = next((i for i, one in enumerate(same) if one is module), None)
    return calls[place] if place is not None and len(calls) == len(same) else None
