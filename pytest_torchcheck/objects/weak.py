"""What is remembered of a class for as long as the class lives, and no longer.

A class may be made in a test and hold, by its closures, models and batches: a cache that holds the
class would hold them as well.
"""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_P = ParamSpec("_P")
_R = TypeVar("_R")


def by_class(function: Callable[Concatenate[type, _P], _R]) -> Callable[Concatenate[type, _P], _R]:
    """Cache what a function returns of a class, and of further hashable arguments.

    Args:
        function: Takes a class first. What it returns must not refer to the class.
    """
    known: weakref.WeakKeyDictionary[type, dict[Any, _R]] = weakref.WeakKeyDictionary()

    @functools.wraps(function)
    def cached(cls: type, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        found = known.setdefault(cls, {})
        key = (args, tuple(sorted(kwargs.items()))) if kwargs else args
        if key not in found:
            found[key] = function(cls, *args, **kwargs)
        return found[key]

    return cached
