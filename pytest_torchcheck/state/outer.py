"""Lists, dicts and sets outside a model that its own functions use by name: caches of a module's file."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

import torch

from ..objects.held import CONTAINERS, restore_container, shallow
from ..objects.peek import names_in
from ..sources import rank

if TYPE_CHECKING:
    from torch import nn

_MOST = 4096
"""Items above which a container is a table of the user's rather than a cache."""


def outer_containers(module: nn.Module) -> dict[str, Any]:
    """Return the containers that stand in the user's files and that methods of the modules, or functions they call, name.

    Args:
        module: The model, with its parts.
    """
    found: dict[str, Any] = {}
    stack: list[Any] = []
    for cls in {kind for part in module.modules() for kind in type(part).__mro__}:
        if not cls.__module__.startswith(("torch.", "builtins")):
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
            elif isinstance(value, CONTAINERS) and len(shallow(value)) <= _MOST:
                found[name] = value
    return found


def _is_own(value: Any) -> bool:
    return isinstance(value, types.FunctionType) and rank(value.__code__.co_filename) == 2


class OuterState:
    """What such containers held; those that hold tensors are put back, counters and logs are left alone."""

    def __init__(self, module: nn.Module) -> None:
        self._kept = [(value, shallow(value)) for value in outer_containers(module).values()]

    def restore(self) -> None:
        """Put back the contents of those that hold a tensor now."""
        for container, items in self._kept:
            if holds_tensors(container):
                restore_container(container, items)


def holds_tensors(container: Any) -> bool:
    """Say whether tensors are among the items of a container, or in tuples and lists among them."""
    items = shallow(container)
    values = [value for _, value in items] if isinstance(container, dict) else items
    return any(
        isinstance(one, torch.Tensor)
        for value in values
        for one in (value if isinstance(value, tuple | list) else (value,))
    )
