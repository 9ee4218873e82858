"""What is outside a model and its own functions use: containers and generators of a file, attributes of classes."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

import torch

from ..objects.held import (
    CONTAINERS,
    keeper,
    random_state,
    restore_container,
    same_items,
    shallow,
)
from ..objects.peek import names_in
from ..objects.trees import is_tensor
from ..sources import rank
from .tensors import TensorState, refuses

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

_MOST = 4096
"""Items above which a container is a table of the user's rather than a cache."""


def outer_containers(module: nn.Module) -> dict[str, Any]:
    """Return the containers that stand in the user's files and that methods of the modules, or functions they call, name.

    Args:
        module: The model, with its parts.
    """
    return {name: value for name, value in _named(module) if _is_cache(value)}


def _is_cache(value: Any) -> bool:
    return isinstance(value, CONTAINERS) and len(shallow(value)) <= _MOST


def _classes(module: nn.Module) -> list[type]:
    """Return the classes of the modules, with their bases, that are not torch's."""
    kinds = {kind for part in module.modules() for kind in type(part).__mro__}
    return [kind for kind in kinds if not kind.__module__.startswith(("torch.", "builtins"))]


def _data_of(cls: type) -> dict[str, Any]:
    """Return the attributes of a class itself that are neither methods nor of Python's own."""
    return {
        name: value
        for name, value in vars(cls).items()
        if not (name.startswith("__") or callable(value) or hasattr(type(value), "__get__"))
    }


def _named(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Iterate over what those functions name of their files, functions left out."""
    stack: list[Any] = []
    for cls in _classes(module):
        stack += [value for value in vars(cls).values() if _is_own(value)]
    seen: set[int] = set()
    while stack:
        function = stack.pop()
        if id(function) in seen:
            continue
        seen.add(id(function))
        for name in names_in(function):
            value = function.__globals__.get(name)
            if isinstance(value, types.FunctionType):
                stack += [value] if _is_own(value) else []
            elif value is not None:
                yield name, value


def _is_own(value: Any) -> bool:
    return isinstance(value, types.FunctionType) and rank(value.__code__.co_filename) == 2


class OuterState:
    """What such containers held; those that hold tensors are put back, counters and logs are left alone.

    So are the states of random generators, once no run follows: that no seed reaches them is for checks to see.

    Tensors that the modules' classes hold as attributes are put back, too; once no run follows, all attributes.
    """

    def __init__(self, module: nn.Module) -> None:
        self._classes = [(cls, dict(vars(cls)), _data_of(cls)) for cls in _classes(module)]
        held = [value for _, _, data in self._classes for value in data.values()]
        self._tensors = [
            TensorState.of(value, copy=True)
            for value in held
            if is_tensor(value) and not refuses(value)
        ]
        named = {id(value): value for value in (*held, *(v for _, v in _named(module)))}.values()
        self._kept = [(value, shallow(value)) for value in named if _is_cache(value)]
        drawn = (keeper(value) for value in named if random_state(value) is not None)
        self._drawn = [put_back for put_back in drawn if put_back is not None]

    def restore(self, *, last: bool = False) -> None:
        """Put back the contents of those that hold a tensor now, and after the last run the generators."""
        for put_back in self._drawn if last else ():
            put_back()
        for container, items in self._kept:
            if holds_tensors(container):
                restore_container(container, items)
        for cls, whole, then in self._classes:
            if same_items(vars(cls), whole):
                continue
            now = _data_of(cls)
            for name in now.keys() | then.keys():
                held, was = now.get(name), then.get(name)
                if held is was or not (last or is_tensor(held) or is_tensor(was)):
                    continue
                if name in then:
                    type.__setattr__(cls, name, was)
                else:
                    type.__delattr__(cls, name)
        for state in self._tensors:
            state.restore(values=True)


def holds_tensors(container: Any) -> bool:
    """Say whether tensors are among the items of a container, or in tuples and lists among them."""
    items = shallow(container)
    values = [value for _, value in items] if isinstance(container, dict) else items
    return any(
        isinstance(one, torch.Tensor)
        for value in values
        for one in (value if isinstance(value, tuple | list) else (value,))
    )
