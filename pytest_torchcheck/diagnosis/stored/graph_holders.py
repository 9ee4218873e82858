"""Who keeps a tensor with a graph from one step to the next: attributes, closures, globals.

Only places that outlive a step are looked at: attributes of modules and other objects, the variables
that a function closes over, and the globals that it names.
"""

from __future__ import annotations

import ast
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ... import sources
from ...lean import dataclass
from ...sources.syntax import root_name

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType, FrameType

    from ...findings import Location

_DEPTH = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """One place that keeps a tensor.

    Attributes:
        name: As the user writes it: ``carried['hidden'][0]``, or qualified: ``rnn.hidden``.
        root: The variable or attribute itself: ``carried['hidden']``, ``rnn.hidden``.
        grad_fn: Class name of the tensor's autograd node.
        location: The line that puts it there, where it could be found.
        caller: The line of the step that calls the method of that line, where there is one.
        node: The tensor's autograd node, live.
    """

    name: str
    root: str
    grad_fn: str
    location: Location | None = None
    caller: Location | None = None
    node: Any = field(default=None, repr=False, compare=False)


def _graph_tensors(
    value: Any, name: str, depth: int = _DEPTH
) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        if value.grad_fn is not None:
            yield name, value
    elif depth and isinstance(value, list | tuple):
        for place, item in enumerate(value):
            yield from _graph_tensors(item, f"{name}[{place}]", depth - 1)
    elif depth and isinstance(value, dict):
        for key, item in value.items():
            yield from _graph_tensors(item, f"{name}[{key!r}]", depth - 1)
    elif depth and _is_object(value):
        for key, item in list(vars(value).items()):
            yield from _graph_tensors(item, f"{name}.{key}", depth - 1)


def _is_object(value: Any) -> bool:
    """Say whether a value is an object of one of the user's classes that keeps things: a memory bank, a trainer."""
    return (
        not isinstance(value, nn.Module | torch.Tensor | torch.optim.Optimizer | type)
        and sources.is_own_class(type(value))
        and hasattr(value, "__dict__")
    )


def _in_attributes(model: nn.Module | None, graph: set[Any] | None) -> Iterator[Holder]:
    for path, module in model.named_modules() if model is not None else ():
        for key, value in vars(module).items():
            if key in ("_parameters", "_buffers", "_modules"):
                value = value if key == "_buffers" else None
            for name, tensor in _graph_tensors(value, key):
                if graph is not None and tensor.grad_fn not in graph:
                    continue
                if hasattr(nn.utils.parametrize, "is_parametrized") and key.startswith(
                    "parametrizations"
                ):
                    continue
                clean = (
                    name.removeprefix("_buffers['").replace("']", "", 1)
                    if key == "_buffers"
                    else name
                )
                root = clean.split("[", 1)[0]
                yield Holder(
                    name=f"{path}.{clean}" if path else clean,
                    root=f"{path}.{root}" if path else root,
                    grad_fn=type(tensor.grad_fn).__name__,
                    location=assignment_in_methods(type(module), root),
                    node=tensor.grad_fn,
                )


def _outliving(frame: FrameType) -> Iterator[tuple[str, Any]]:
    code = frame.f_code
    for name in code.co_freevars:
        if name in frame.f_locals:
            yield name, frame.f_locals[name]
    for name in code.co_names:
        if name in frame.f_globals and not callable(frame.f_globals[name]):
            yield name, frame.f_globals[name]
    owner = frame.f_locals.get("self")
    if owner is not None and not isinstance(
        owner, nn.Module | torch.Tensor | torch.optim.Optimizer
    ):
        for key, value in getattr(owner, "__dict__", {}).items():
            yield f"self.{key}", value


def _in_frames(
    frames: list[FrameType], graph: set[Any] | None, model: nn.Module | None
) -> Iterator[Holder]:
    for frame in frames:
        if not sources.rank(frame.f_code.co_filename):
            continue
        for variable, value in _outliving(frame):
            if isinstance(value, nn.Module) and value is not model:  # a loss with a memory
                for held in _in_attributes(value, graph):
                    yield replace(
                        held, name=f"{variable}.{held.name}", root=f"{variable}.{held.root}"
                    )
            for name, tensor in _graph_tensors(value, variable):
                if graph is not None and tensor.grad_fn not in graph:
                    continue
                found = assignment_in_code(frame.f_code, name)
                root, location = (
                    found if found is not None else (name.rpartition("[")[0] or name, None)
                )
                caller = None
                if location is None and _is_object(value):
                    root, location, caller = _in_object(frame.f_code, variable, value, name)
                yield Holder(
                    name=name,
                    root=root,
                    grad_fn=type(tensor.grad_fn).__name__,
                    location=location,
                    caller=caller,
                    node=tensor.grad_fn,
                )


def _in_object(
    code: CodeType, variable: str, value: Any, name: str
) -> tuple[str, Location | None, Location | None]:
    """Return the attribute of an object that keeps a tensor, the line that assigns it, and the step's call of that."""
    attribute = name.removeprefix(f"{variable}.").split("[")[0].split(".")[0]
    root = f"{variable}.{attribute}"
    place = assignment_in_methods(type(value), attribute)
    if place is None:
        return root, None, None
    calls = calls_in_code(code, f"{variable}.{place.function.rpartition('.')[2]}")
    return root, place, calls[0] if len(calls) == 1 else None


def calls_in_code(code: CodeType, name: str) -> list[Location]:
    """Return the lines of a function that call ``name`` as it is written: ``memory.enqueue``."""
    return [
        _line(code, node.lineno)
        for node in ast.walk(_tree(code))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == name
    ]


def holders(
    model: nn.Module | None, frames: list[FrameType], graph: set[Any] | None = None
) -> tuple[Holder, ...]:
    """Return what keeps tensors with a graph from step to step.

    Args:
        model: Whose attributes are looked at.
        frames: Of the user's functions, whose closures and globals are looked at.
        graph: Only tensors whose node is one of these; all by default.
    """
    found: dict[str, Holder] = {}
    for holder in (*_in_attributes(model, graph), *_in_frames(frames, graph, model)):
        found.setdefault(holder.root, holder)
    return tuple(found.values())


_MAKES_NEW = frozenset(
    {"zeros", "ones", "empty", "full", "tensor", "as_tensor", "arange", "zeros_like", "ones_like", "empty_like",
     "full_like", "new_zeros", "new_ones", "new_empty", "new_full", "new_tensor", "detach", "item", "tolist"}
)  # fmt: skip


def _drops_graph(value: ast.expr) -> bool:
    """Say whether an assigned expression can hold no graph: a constant, a new or a detached tensor."""
    if isinstance(value, ast.Constant) or (
        isinstance(value, ast.List | ast.Dict) and not ast.unparse(value)[1:-1]
    ):
        return True
    for node in ast.walk(value):
        if isinstance(node, ast.Attribute) and node.attr in ("detach", "item", "tolist", "data"):
            return True
    if isinstance(value, ast.Call):
        name = (
            value.func.attr
            if isinstance(value.func, ast.Attribute)
            else getattr(value.func, "id", "")
        )
        return name in _MAKES_NEW
    return False


def _assignments(tree: ast.AST) -> Iterator[tuple[ast.expr, ast.expr, int]]:
    for node in ast.walk(tree):
        for target, value in sources.writes(node):
            yield target, value, getattr(node, "lineno", value.lineno)
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("append", "extend", "update")
        ) and node.args:
            yield node.func.value, node.args[0], node.lineno


def assignment_in_code(code: CodeType, name: str) -> tuple[str, Location] | None:
    """Return the target and line in a function that assigns ``name`` (or what holds it) a tensor with a graph."""
    tree, wanted = _tree(code), name
    while wanted:
        kept = [(t, line) for t, value, line in _assignments(tree) if not _drops_graph(value)]
        items = [(t.value, line) for t, line in kept if isinstance(t, ast.Subscript)]
        for target, line in (*kept, *items):
            if ast.unparse(target) == wanted:
                return wanted, _line(code, line)
        if "[" not in wanted:
            return None
        wanted = wanted.rpartition("[")[0]
    return None


def assignment_in_methods(cls: type, attribute: str) -> Location | None:
    """Return the line outside ``__init__`` that assigns ``self.attribute`` a tensor with a graph."""
    for base in cls.__mro__:
        for name, method in vars(base).items():
            function = getattr(method, "__func__", method)
            code = getattr(function, "__code__", None)
            if name == "__init__" or code is None or not sources.rank(code.co_filename):
                continue
            if (found := assignment_in_code(code, f"self.{attribute}")) is not None:
                return found[1]
    return None


def kept_attributes(model: nn.Module | None) -> tuple[Holder, ...]:
    """Return attributes that a ``forward`` assigns and reads, from the source alone."""
    found = []
    for path, module in model.named_modules() if model is not None else ():
        function = getattr(type(module), "forward", None)
        code = getattr(function, "__code__", None)
        if code is None or sources.rank(code.co_filename) == 0:
            continue
        for target, value, line in _assignments(_tree(code)):
            if (
                isinstance(target, ast.Attribute)
                and isinstance(target.value, ast.Name)
                and target.value.id == "self"
            ) and not _drops_graph(value):
                name = f"{path}.{target.attr}" if path else target.attr
                found.append(Holder(name=name, root=name, grad_fn="", location=_line(code, line)))
    return _each_once(found)


def _tree(code: CodeType) -> ast.AST:
    """Return the syntax tree of a function; an empty one where it has no source."""
    return (sources.parsed(code) or (ast.Module([], []), ""))[0]


def _line(code: CodeType, line: int) -> Location:
    return sources.of_line(code.co_filename, line, getattr(code, "co_qualname", ""))


def _each_once(found: list[Holder]) -> tuple[Holder, ...]:
    return tuple({holder.root: holder for holder in found}.values())


def kept_variables(frames: list[FrameType]) -> tuple[Holder, ...]:
    """Return what a function puts into places that outlive it and also reads, from the source alone."""
    found = []
    for frame in frames:
        code = frame.f_code
        if not sources.rank(code.co_filename):
            continue
        tree = _tree(code)
        outliving = {
            *code.co_freevars,
            *(name for name in code.co_names if name in frame.f_globals),
        }
        if not isinstance(
            frame.f_locals.get("self"), nn.Module | torch.Tensor | torch.optim.Optimizer
        ):
            outliving.add("self")
        read = {
            ast.unparse(node)
            for node in ast.walk(tree)
            if isinstance(node, ast.Name | ast.Subscript | ast.Attribute)
            and isinstance(node.ctx, ast.Load)
        }
        for target, value, line in _assignments(tree):
            name = ast.unparse(target)
            if root_name(target) in outliving and name in read and not _drops_graph(value):
                found.append(Holder(name=name, root=name, grad_fn="", location=_line(code, line)))
    return _each_once(found)
