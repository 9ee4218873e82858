"""Put back what the functions of a training step keep between calls: closures, globals, attributes."""

from __future__ import annotations

import contextlib
import dis
import functools
import types
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from .. import sources
from ..data.contents import Contents, has_state
from ..data.generators import is_generator
from ..data.snapshot import Snapshot
from ..objects.peek import PLAIN, attributes, cells, closed_over, entries, opaque, pairs
from ..state.devices import device_loss_told
from ..state.tensors import refuses

if TYPE_CHECKING:
    from collections.abc import Callable

_MOST_BYTES = 256 * 2**20


def functions_of(*roots: Callable[..., Any] | None) -> list[types.FunctionType]:
    """Return the user's functions reachable from some callables through closures, partials and globals."""
    found: dict[int, types.FunctionType] = {}
    stack: list[Any] = [root for root in roots if root is not None]
    while stack and len(found) < 64:
        thing = stack.pop()
        if isinstance(thing, functools.partial):
            stack += [thing.func, *thing.args, *thing.keywords.values()]
        elif isinstance(thing, types.MethodType):
            stack.append(thing.__func__)
        elif isinstance(thing, types.FunctionType):
            if id(thing) in found or sources.rank(thing.__code__.co_filename) < 2:
                continue
            found[id(thing)] = thing
            stack += closed_over(thing).values()
            stack += [
                value
                for name in thing.__code__.co_names
                if isinstance(value := thing.__globals__.get(name), types.FunctionType)
            ]
    return list(found.values())


class ClosureState:
    """What the user's functions hold besides the model and the optimizer.

    Args:
        roots: The train step, the optimizer function; a loss, which may be a module with a state of its own.
        without: Objects that someone else puts back: the model.
        given: What the step is given besides: optimizers, with whatever comes beside them.
    """

    def __init__(
        self, *roots: Callable[..., Any] | None, without: tuple[Any, ...] = (), given: Any = None
    ) -> None:
        functions = functions_of(*roots)
        owners = {
            name: owner
            for name, owner in owners_of(*roots).items()
            if not any(owner is one for one in without)
        }
        self._named = [
            (cell, name, cell.cell_contents)
            for function in functions
            for name, cell in cells(function).items()
        ]
        self._globals = [
            (function.__globals__, name, function.__globals__[name])
            for function in functions
            for name in sorted({*_assigned_globals(function), *_mutable_globals(function)})
            if name in function.__globals__
        ]
        self._attributes = [(function, dict(vars(function))) for function in functions]
        held = owners | {name: value for _, name, value in (*self._named, *self._globals)}
        held.update(("loss", root) for root in roots if isinstance(root, torch.nn.Module))
        if given is not None and not any(given is one for one in without):
            held["optimizer"] = given
        self._held = {
            name: value
            for name, value in _entered(held).items()
            if not any(value is one for one in without)
        }
        self._snapshot = Snapshot(
            Contents(types.SimpleNamespace(**held), without=without), budget=_MOST_BYTES
        )

    def savable(self) -> dict[str, Any]:
        """Return, by name, what a checkpoint can hold: scalers, samplers, averages, random generators."""
        return {
            name: value
            for name, value in self._held.items()
            if is_generator(value) or has_state(value)
        }

    def iterators(self) -> tuple[str, ...]:
        """Name what is read once and cannot be put back: the order of the data."""
        return tuple(
            name
            for name, value in self._held.items()
            if isinstance(value, Iterator) and not callable(getattr(value, "state_dict", None))
        )

    def changed(self) -> tuple[str, ...]:
        """Name what differs from what was taken: rebound variables, then what they hold."""
        rebound = [name for cell, name, value in self._named if cell.cell_contents is not value]
        rebound += [name for space, name, value in self._globals if space.get(name) is not value]
        rebound += [
            f"{function.__name__}.{name}"
            for function, values in self._attributes
            for name, value in vars(function).items()
            if values.get(name) is not value
        ]
        return tuple(
            dict.fromkeys([*rebound, *(change.held.path for change in self._snapshot.changes())])
        )

    def restore(self) -> None:
        """Put everything back."""
        for cell, _, value in self._named:
            cell.cell_contents = value
        for namespace, name, value in self._globals:
            namespace[name] = value
        for function, values in self._attributes:
            vars(function).clear()
            vars(function).update(values)
        self._snapshot.restore()


def owners_of(*roots: Callable[..., Any] | None) -> dict[str, Any]:
    """Return the objects of the user's classes whose methods some callables are, by the name they have in these."""
    found: dict[str, Any] = {}
    for root in roots:
        while isinstance(root, functools.partial):
            root = root.func
        owner = getattr(root, "__self__", None)
        if owner is None or isinstance(owner, type) or not sources.is_own_class(type(owner)):
            continue
        if not any(owner is one for one in found.values()):
            function = getattr(root, "__func__", None)
            code = getattr(function, "__code__", None)
            name = code.co_varnames[0] if code is not None and code.co_argcount else "self"
            found[name if name not in found else f"{name}{len(found)}"] = owner
    return found


def _entered(held: dict[str, Any], depth: int = 2) -> dict[str, Any]:
    """Return variables and what stands in their containers and in the user's objects, as the user would write them."""
    found: dict[str, Any] = {}
    for name, value in held.items():
        if not depth:
            found[name] = value
        elif isinstance(value, dict):
            found |= {f"{name}[{key!r}]": one for key, one in value.items()}
        elif isinstance(value, list | tuple) and not hasattr(value, "_fields"):
            found |= {f"{name}[{place}]": one for place, one in enumerate(value[:64])}
        elif _is_plain_object(value):
            inside = {f"{name}.{key}": one for key, one in vars(value).items()}
            found |= _entered(inside, depth - 1)
        else:
            found[name] = value
    return found


def _is_plain_object(value: Any) -> bool:
    """Say whether a value is an object of the user's own that no state_dict saves as a whole."""
    return (
        not isinstance(value, torch.nn.Module | torch.Tensor | Iterator)
        and not callable(getattr(value, "state_dict", None))
        and sources.is_own_class(type(value))
        and hasattr(value, "__dict__")
    )


def keeps_something(function: Callable[..., Any]) -> bool:
    """Say whether a user's function binds anything that outlives its call: an attribute, an element, an outer name."""
    return any(
        instruction.opname in ("STORE_ATTR", "STORE_SUBSCR", "STORE_GLOBAL")
        or (instruction.opname == "STORE_DEREF" and instruction.argval in one.__code__.co_freevars)
        for one in functions_of(function)
        for instruction in dis.get_instructions(one)
    )


def _assigned_globals(function: types.FunctionType) -> set[str]:
    return {
        instruction.argval
        for instruction in dis.get_instructions(function)
        if instruction.opname == "STORE_GLOBAL"
    }


def _mutable_globals(function: types.FunctionType) -> set[str]:
    """Name the globals that a function uses and could change in place."""
    fixed = (
        types.ModuleType,
        types.FunctionType,
        types.BuiltinFunctionType,
        type,
        str,
        int,
        float,
        tuple,
        type(None),
    )
    return {
        name
        for name in function.__code__.co_names
        if name in function.__globals__ and not isinstance(function.__globals__[name], fixed)
    }


@contextlib.contextmanager
def kept(*roots: Callable[..., Any] | None, without: tuple[Any, ...] = ()) -> Iterator[None]:
    """Put back, on every way out, what some functions keep between calls.

    Args:
        roots: The train step, the optimizer function.
        without: Objects that someone else puts back.
    """
    state = ClosureState(*roots, without=without)
    try:
        yield
    finally:
        with device_loss_told():
            state.restore()


def carried_graphs(
    *roots: Callable[..., Any] | None, model: torch.nn.Module
) -> dict[str, torch.Tensor]:
    """Return the tensors with an autograd graph that functions, or the model's attributes and buffers, hold now.

    Returns:
        By the path that the user would write: ``carried['hidden'][0]``, ``model.cache``.
    """
    found: dict[str, torch.Tensor] = {}
    for name, held in held_between_calls(*roots, model=model):
        found |= _attached(held, name)
    return found


def held_between_calls(
    *roots: Callable[..., Any] | None, model: torch.nn.Module
) -> Iterator[tuple[str, Any]]:
    """Iterate over what functions, or the model's attributes and buffers, hold now, by the name that the user writes.

    Modules that functions hold are left out.
    """
    for root in roots:
        owner = getattr(root, "__self__", None)
        if owner is not None and owner is not model:
            yield "self", owner
    for function in functions_of(*roots):
        for name, held in closed_over(function).items():
            if not isinstance(held, torch.nn.Module):
                yield name, held
        for name in {*_assigned_globals(function), *_mutable_globals(function)}:
            if not isinstance(function.__globals__.get(name), torch.nn.Module):
                yield name, function.__globals__.get(name)
    for name, module in model.named_modules():
        prefix = f"model.{name}." if name else "model."
        for attribute, value in (*vars(module).items(), *module._buffers.items()):
            if not attribute.startswith("_") or attribute not in _TORCHS_OWN:
                yield prefix + attribute, value


def holds_any(root: Callable[..., Any] | None, looked_for: Callable[[torch.Tensor], bool]) -> bool:
    """Say whether the functions of a step hold a tensor of some kind between calls, in containers or objects too."""
    stack: list[tuple[Any, int]] = [(owner, _DEPTH) for owner in owners_of(root).values()]
    for function in functions_of(root):
        stack += [(held, _DEPTH) for held in closed_over(function).values()]
        stack += [(value, _DEPTH) for value in vars(function).values()]
        stack += [
            (function.__globals__.get(name), _DEPTH)
            for name in {*_assigned_globals(function), *_mutable_globals(function)}
        ]
    while stack:
        value, depth = stack.pop()
        if isinstance(value, torch.Tensor):
            if looked_for(value):
                return True
        elif not depth or isinstance(value, torch.nn.Module | torch.optim.Optimizer):
            continue
        elif isinstance(value, dict):
            stack += [(item, depth - 1) for item in list(value.values())[:_WIDEST]]
        elif isinstance(value, list | tuple | deque):
            stack += [(item, depth - 1) for item in list(value)[:_WIDEST]]
        elif sources.is_own_class(type(value)):
            stack += [(item, depth - 1) for item in list(attributes(value).values())]
    return False


_WIDEST = 64
_TORCHS_OWN = frozenset(vars(torch.nn.Module()))


_DEPTH = 6


def _attached(value: Any, name: str, depth: int = _DEPTH) -> dict[str, torch.Tensor]:
    """Return the tensors with a graph in nested containers and in objects of the user's classes."""
    if opaque(value):
        return {}
    if isinstance(value, torch.Tensor):
        return {name: value} if not refuses(value) and value.grad_fn is not None else {}
    kind: type = type(value)
    if not depth or kind in PLAIN:
        return {}
    parts: Iterator[tuple[str, Any]] = iter(())
    if isinstance(value, dict):
        parts = ((f"{name}[{key!r}]", item) for key, item in pairs(value))
    elif isinstance(value, list | tuple | deque):
        parts = ((f"{name}[{i}]", item) for i, item in enumerate(entries(value)))
    elif sources.is_own_class(kind) and not isinstance(value, torch.nn.Module):
        parts = ((f"{name}.{key}", item) for key, item in list(attributes(value).items()))
    return {k: v for path, item in parts for k, v in _attached(item, path, depth - 1).items()}
