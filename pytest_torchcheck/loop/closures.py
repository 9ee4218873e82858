"""Put back what the functions of a training step keep between calls: closures, globals, attributes."""

from __future__ import annotations

import contextlib
import dis
import functools
import types
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from pytest_torchcheck import sources
from pytest_torchcheck.data.contents import Contents
from pytest_torchcheck.data.generators import is_generator
from pytest_torchcheck.data.snapshot import Snapshot

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
            stack += [cell.cell_contents for cell in thing.__closure__ or () if _is_filled(cell)]
            stack += [
                value
                for name in thing.__code__.co_names
                if isinstance(value := thing.__globals__.get(name), types.FunctionType)
            ]
    return list(found.values())


def _is_filled(cell: types.CellType) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


class ClosureState:
    """What the user's functions hold besides the model and the optimizer.

    Args:
        roots: The train step, the optimizer function.
        without: Objects that someone else puts back: the model.
    """

    def __init__(self, *roots: Callable[..., Any] | None, without: tuple[Any, ...] = ()) -> None:
        functions = functions_of(*roots)
        self._named = [
            (cell, name, cell.cell_contents)
            for function in functions
            for name, cell in zip(
                function.__code__.co_freevars, function.__closure__ or (), strict=False
            )
            if _is_filled(cell)
        ]
        self._globals = [
            (function.__globals__, name, function.__globals__[name])
            for function in functions
            for name in sorted({*_assigned_globals(function), *_mutable_globals(function)})
            if name in function.__globals__
        ]
        held = {name: value for _, name, value in (*self._named, *self._globals)}
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
            if is_generator(value)
            or (
                callable(getattr(value, "state_dict", None))
                and callable(getattr(value, "load_state_dict", None))
                and not isinstance(value, type)
            )
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
        return tuple(
            dict.fromkeys([*rebound, *(change.held.path for change in self._snapshot.changes())])
        )

    def restore(self) -> None:
        """Put everything back."""
        for cell, _, value in self._named:
            cell.cell_contents = value
        for namespace, name, value in self._globals:
            namespace[name] = value
        self._snapshot.restore()


def _entered(held: dict[str, Any]) -> dict[str, Any]:
    """Return variables and what stands in their dicts, lists and tuples, as the user would write them."""
    found: dict[str, Any] = {}
    for name, value in held.items():
        if isinstance(value, dict):
            found |= {f"{name}[{key!r}]": one for key, one in value.items()}
        elif isinstance(value, list | tuple) and not hasattr(value, "_fields"):
            found |= {f"{name}[{place}]": one for place, one in enumerate(value[:64])}
        else:
            found[name] = value
    return found


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
        state.restore()


def carried_graphs(
    *roots: Callable[..., Any] | None, model: torch.nn.Module
) -> dict[str, torch.Tensor]:
    """Return the tensors with an autograd graph that functions, or the model's attributes, hold now.

    Returns:
        By the path that the user would write: ``carried['hidden'][0]``, ``model.cache``.
    """
    found: dict[str, torch.Tensor] = {}
    for function in functions_of(*roots):
        for name, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=False
        ):
            if _is_filled(cell) and not isinstance(cell.cell_contents, torch.nn.Module):
                found |= _attached(cell.cell_contents, name)
        for name in _assigned_globals(function):
            found |= _attached(function.__globals__.get(name), name)
    for name, module in model.named_modules():
        for attribute, value in vars(module).items():
            if not attribute.startswith("_") or attribute not in _TORCHS_OWN:
                prefix = f"model.{name}." if name else "model."
                found |= _attached(value, prefix + attribute)
    return found


_TORCHS_OWN = frozenset(vars(torch.nn.Module()))


def _attached(value: Any, name: str) -> dict[str, torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return {name: value} if value.grad_fn is not None else {}
    if isinstance(value, dict):
        return {
            k: v
            for key, item in value.items()
            for k, v in _attached(item, f"{name}[{key!r}]").items()
        }
    if isinstance(value, list | tuple):
        return {
            k: v for i, item in enumerate(value) for k, v in _attached(item, f"{name}[{i}]").items()
        }
    return {}
