"""What is remembered of a class or a tensor for as long as it lives, and no longer.

A class may be made in a test and hold, by its closures, models and batches: a cache that holds the
class would hold them as well.
"""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

_P = ParamSpec("_P")
_R = TypeVar("_R")


def by_class(function: Callable[Concatenate[type, _P], _R]) -> Callable[Concatenate[type, _P], _R]:
    """Cache what a function returns of a class, and of further hashable arguments.

    Args:
        function: Takes a class first. What it returns must not refer to the class.
    """
    # by id: classes of a metaclass may compare as they like
    known: dict[int, tuple[weakref.ref[type], dict[Any, _R]]] = {}

    @functools.wraps(function)
    def cached(cls: type, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        place = id(cls)
        held = known.get(place)
        if held is None or held[0]() is not cls:
            held = known[place] = weakref.ref(cls, lambda _: known.pop(place, None)), {}
        found = held[1]
        key = (args, tuple(sorted(kwargs.items()))) if kwargs else args
        if key not in found:
            found[key] = function(cls, *args, **kwargs)
        return found[key]

    return cached


class ByTensor(Generic[_R]):
    """What is known of tensors while they live: another one may get the ``id`` of one that is gone."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[weakref.ref[Tensor], _R]] = {}

    def __bool__(self) -> bool:
        return bool(self._held)

    def __setitem__(self, tensor: Tensor, known: _R) -> None:
        self._held[id(tensor)] = weakref.ref(tensor), known

    def get(self, value: object) -> _R | None:
        """Return what is known of a value; None also where it is no tensor."""
        held = self._held.get(id(value))
        return held[1] if held is not None and held[0]() is value else None
