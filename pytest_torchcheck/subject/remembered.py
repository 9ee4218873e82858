"""What is found out of a subject once, and remembered as long as its model stays what it is."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, TypeVar

from .errors import SubjectError

if TYPE_CHECKING:
    from collections.abc import Callable

    from . import Subject

_R = TypeVar("_R")


def remembered(key: str) -> Callable[[Callable[[Subject], _R]], Callable[[Subject], _R]]:
    """Keep what a function returns of a subject, or what the user's code raises in it, in the subject's cache."""

    def keeping(function: Callable[[Subject], _R]) -> Callable[[Subject], _R]:
        @functools.wraps(function)
        def known(subject: Subject) -> _R:
            if (raised := subject.cache.get(("raised", key))) is not None:
                error, traceback = raised
                raise error.with_traceback(traceback)
            if key not in subject.cache:
                try:
                    subject.cache[key] = function(subject)
                except SubjectError as error:
                    subject.cache["raised", key] = error, error.__traceback__
                    raise
            found: _R = subject.cache[key]
            return found

        return known

    return keeping
