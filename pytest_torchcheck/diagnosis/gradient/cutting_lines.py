"""Lines that cut the graph on purpose, within a helper or under a flag: the call that meets them, and what sets the flag."""

from __future__ import annotations

import ast
import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ... import sources
from ...findings import Culprit
from ..lines.layer_sizes import building_calls, given_argument, size_origin

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

    from ...findings import Location
    from ...probes.gradient.provenance import GraphCut

_WORDS = {
    "detach": (".detach",),
    "data": (".data",),
    "item": (".item", "float(", ".tolist"),
    "numpy": ("numpy", "np."),
    "no-grad": ("no_grad", "inference_mode", "set_grad_enabled"),
    "recreated": ("tensor(",),
}
_OFF = "set_grad_enabled"
_MOST = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why a line that cuts the graph is met: cause and fix to be added, and the lines."""

    cause: str
    fix: str
    culprits: tuple[Culprit, ...]


def reason(model: nn.Module, cut: GraphCut) -> Reason | None:
    """Say which flag makes a line cut the graph, else which call meets a function that gives nothing with a graph back."""
    place = cut.region or cut.location
    if place is None or cut.kind not in _WORDS:
        return None
    for flag in _flags(place, cut.kind):
        found = (
            _of_module(model, place, flag)
            if flag.attribute
            else _of_argument(place, flag, cut.callers)
        )
        if found is not None:
            return found
    return _of_call(place, cut.losing)


def _of_call(place: Location, lines: tuple[Location, ...]) -> Reason | None:
    name = place.function.rpartition(".")[2]
    if not lines or not name:
        return None
    outer = lines[0]
    names = {name, *(line.function.rpartition(".")[2] for line in lines)}
    culprits = [
        Culprit(
            "call",
            next(
                (
                    sources.called(c)
                    for c in sources.around(line.file, line.line, ast.Call)
                    if sources.called(c) in names
                ),
                name,
            ),
            "no return value here has a graph",
            line,
        )
        for line in lines[:_MOST]
    ]
    return Reason(
        cause=f"; line {outer.line} calls it and uses the result for the loss",
        fix=f", or call a version that records gradients on line {outer.line}",
        culprits=tuple(culprits),
    )


# -- flags --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Flag:
    """A name that decides whether a line cuts the graph.

    Attributes:
        name: Of the attribute of self, or of the argument.
        attribute: Whether it is an attribute of self.
        value: The truth value with which the line cuts.
    """

    name: str
    attribute: bool
    value: bool


def _flags(place: Location, kind: str) -> Iterator[_Flag]:
    """Yield the flags on which a line that cuts depends, the nearest first."""
    function = sources.function_around(place.file, place.line)
    if function is None:
        return
    found: list[tuple[int, ast.expr, bool]] = []
    for node in ast.walk(function):
        start, end = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0) or 0
        if not start <= place.line <= end:
            continue
        if isinstance(node, ast.IfExp):
            cuts = [
                any(w in ast.unparse(part) for w in _WORDS[kind])
                for part in (node.body, node.orelse)
            ]
            if cuts[0] != cuts[1]:
                found.append((start, node.test, cuts[0]))
        elif isinstance(node, ast.If) and place.line >= node.body[0].lineno:
            inside = place.line <= (node.body[-1].end_lineno or 0)
            found.append((start, node.test, inside))
        elif isinstance(node, ast.With) and kind == "no-grad" and start == place.line:
            parts = [c for c in ast.walk(node.items[0].context_expr) if isinstance(c, ast.Call)]
            found += [
                (start, c.args[0], False) for c in parts if sources.called(c) == _OFF and c.args
            ]
    arguments = {*sources.parameters(function)} - {"self"}
    for _, test, value in sorted(found, key=lambda entry: -entry[0]):
        yield from _named(test, value, arguments)


def _named(test: ast.expr, value: bool, arguments: set[str]) -> Iterator[_Flag]:
    """Yield the flags of a condition that must have one truth value for the condition to have one."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _named(test.operand, not value, arguments)
    elif isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) == value:
        for part in test.values:
            yield from _named(part, value, arguments)
    elif isinstance(test, ast.Attribute) and getattr(test.value, "id", "") == "self":
        yield _Flag(name=test.attr, attribute=True, value=value)
    elif isinstance(test, ast.Name) and test.id in arguments:
        yield _Flag(name=test.id, attribute=False, value=value)


def _of_module(model: nn.Module, place: Location, flag: _Flag) -> Reason | None:
    """Say which module has the flag, and the line that builds it with that value or leaves it to its default."""
    if flag.name == "training":
        return None
    having = [
        (name, module)
        for name, module in model.named_modules()
        if any(place.function.startswith(f"{cls.__qualname__}.") for cls in type(module).__mro__)
        and isinstance(vars(module).get(flag.name), bool)
    ]
    if not having or any(vars(module)[flag.name] != flag.value for _, module in having):
        return None
    name, module = having[0]
    kind, argument = type(module).__name__, _argument_of(type(module), flag.name)
    line, detail = sources.of_assignment(module, flag.name), f"{flag.name} is {flag.value}"
    cause, fix = f"; {name or 'the model'} has {flag.name}={flag.value}", ""
    built = _built(model, name, type(module), argument, value=flag.value) if argument else None
    if built is not None:
        line, how = built
        detail = f"built {how}"
        cause += f", built on line {line.line} {how}"
        fix = f", or pass {argument}={not flag.value} to {kind} on line {line.line}"
    if line is None:
        return None
    culprit = Culprit("module", name or kind, detail, line)
    return Reason(cause=cause, fix=fix, culprits=(culprit,))


def _built(
    model: nn.Module, name: str, cls: type, argument: str, *, value: bool
) -> tuple[Location, str] | None:
    """Return the line that builds a module with a value of an argument, or leaves it to that default, and how."""
    lines: dict[Location, str] = {}
    for built in building_calls(model, name) if name else ():
        line, call = built.scope.line(built.call), built.call
        given = given_argument(call, cls, argument)
        if given is None:
            starred = any(k.arg is None for k in call.keywords)
            starred |= any(isinstance(a, ast.Starred) for a in call.args)
            if not starred and _default_of(cls, argument) is value:
                lines[line] = f"without {argument}=, whose default is {value}"
        elif not isinstance(given, ast.Constant):
            origin = size_origin(model, name, argument, value)
            line = origin.location if origin is not None and origin.constant else line
            lines[line] = f"with {argument}={ast.unparse(given)}"
        elif given.value is value:
            lines[line] = f"with {argument}={value}"
    return next(iter(lines.items())) if len(lines) == 1 else None


def _of_argument(place: Location, flag: _Flag, callers: tuple[Location, ...]) -> Reason | None:
    """Say which call gives the flag to the function, or leaves it to its default."""
    function = sources.function_around(place.file, place.line)
    name = place.function.rpartition(".")[2]
    if function is None:
        return None
    met: dict[Location, tuple[str, str]] = {}
    for line in callers:
        for call in sources.around(line.file, line.line, ast.Call):
            given = next((k.value for k in call.keywords if k.arg == flag.name), None)
            left = sources.called(call) == name and _leaves_out(call, function, flag.name)
            its = sources.called(call) == name or name == "forward"
            if its and isinstance(given, ast.Constant) and given.value is flag.value:
                met[line] = sources.called(call), f"with {flag.name}={flag.value}"
            elif left and _default(function, flag.name) is flag.value:
                met[line] = name, f"without {flag.name}=, whose default is {flag.value}"
    if not met:
        return None
    first, (_, how) = next(iter(met.items()))
    return Reason(
        cause=f"; line {first.line} calls {name} {how}",
        fix=f", or pass {flag.name}={not flag.value} on line {first.line}",
        culprits=tuple(
            Culprit("call", called, f"called here {how}", line)
            for line, (called, how) in list(met.items())[:_MOST]
        ),
    )


def _argument_of(cls: type, attribute: str) -> str:
    """Return the parameter of a class's ``__init__`` that becomes an attribute as it is; empty where none does."""
    try:
        names = inspect.signature(cls.__init__).parameters  # type: ignore[misc]
    except (TypeError, ValueError):
        return ""
    line = sources.of_attribute(cls, attribute)
    function = sources.function_around(line.file, line.line) if line is not None else None
    for node in ast.walk(function) if function is not None and function.name == "__init__" else ():
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            pairs = (
                zip(target.elts, node.value.elts, strict=False)
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
                else [(target, node.value)]
            )
            for left, right in pairs:
                if getattr(left, "attr", "") == attribute and getattr(right, "id", "") in names:
                    return str(right.id)  # type: ignore[attr-defined]
    return ""


def _default_of(cls: type, argument: str) -> object:
    return inspect.signature(cls.__init__).parameters[argument].default  # type: ignore[misc]


def _default(function: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> object:
    """Return the constant that a parameter has by default; None where there is none."""
    value = sources.default_of(function, name)
    return value.value if isinstance(value, ast.Constant) else None


def _leaves_out(
    call: ast.Call, function: ast.FunctionDef | ast.AsyncFunctionDef, name: str
) -> bool:
    """Say whether a call gives no value for a parameter, by position or name."""
    if any(k.arg in (None, name) for k in call.keywords):
        return False
    names = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
    bound = isinstance(call.func, ast.Attribute) and names[:1] == ["self"]
    place = names.index(name) - bound if name in names else len(call.args)
    return len(call.args) <= place and not any(isinstance(a, ast.Starred) for a in call.args)
