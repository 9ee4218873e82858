"""Calls of the methods that modules have beside ``forward``, which no hook sees."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    Seen = Callable[[nn.Module, str, tuple[Any, ...], dict[str, Any], Any], None]


def own_methods(kind: type[nn.Module]) -> dict[str, Any]:
    """Return the functions that a class of modules and those between it and ``nn.Module`` define, by name."""
    own = itertools.takewhile(lambda one: one is not nn.Module, kind.__mro__)
    found: dict[str, Any] = {}
    for one in own:
        for name, value in vars(one).items():
            if inspect.isfunction(value):
                found.setdefault(name, value)
    return found


@contextlib.contextmanager
def methods_seen(modules: Iterable[nn.Module], see: Seen) -> Iterator[None]:
    """See what the methods of some modules are given and return, ``forward`` and special ones left out.

    Args:
        modules: Each gets attributes of its own for the length of the block; what has one already keeps it.
        see: Called after each call with the module, the method's name, its arguments and its result.
    """
    put: list[tuple[nn.Module, str]] = []
    for module in modules:
        for name in own_methods(type(module)):
            special = name == "forward" or name.startswith("__")
            if not special and name not in module.__dict__:
                module.__dict__[name] = functools.partial(_call, see, module, name)
                put.append((module, name))
    try:
        yield
    finally:
        for module, name in put:
            module.__dict__.pop(name, None)


def _call(see: Seen, module: nn.Module, name: str, /, *args: Any, **kwargs: Any) -> Any:
    result = getattr(type(module), name)(module, *args, **kwargs)
    see(module, name, args, kwargs, result)
    return result
