"""What is found out of a subject once, and remembered as long as its model stays what it is."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from . import Subject

_R = TypeVar("_R")


def remembered(key: str) -> Callable[[Callable[[Subject], _R]], Callable[[Subject], _R]]:
    """Keep what a function returns of a subject in the subject's cache, under a key; what raises is asked again."""

    def keeping(function: Callable[[Subject], _R]) -> Callable[[Subject], _R]:
        @functools.wraps(function)
        def known(subject: Subject) -> _R:
            if key not in subject.cache:
                subject.cache[key] = function(subject)
            found: _R = subject.cache[key]
            return found

        return known

    return keeping
