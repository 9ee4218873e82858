"""The one profile hook of the package: it sees the Python calls of a block, but not what observers do in between."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    Hook = Callable[[FrameType, str, Any], object]

_hooks: list[Hook] = []  # those of the open blocks, the innermost last


class Profiled:
    """Call a function on every event of :func:`sys.setprofile` inside, and the hook that was set before it.

    A ``cProfile.Profile`` pauses meanwhile.

    Args:
        see: Called with frame, event and argument.
    """

    def __init__(self, see: Hook) -> None:
        self._see = see
        self._hook: Hook = self._event
        self._previous: Any = None

    def __enter__(self) -> Self:
        self._previous = sys.getprofile()
        if hasattr(self._previous, "disable"):
            self._previous.disable()
        _hooks.append(self._hook)
        sys.setprofile(self._hook)
        return self

    def __exit__(self, *exc: object) -> None:
        _hooks.remove(self._hook)
        if hasattr(self._previous, "enable"):
            sys.setprofile(None)
            self._previous.enable()
        else:
            sys.setprofile(self._previous)

    def _event(self, frame: FrameType, event: str, arg: Any) -> None:
        self._see(frame, event, arg)
        if callable(self._previous):
            self._previous(frame, event, arg)


def pause() -> Hook | None:
    """Switch the hook off on this thread, for what an observer does; :func:`resume` takes what is returned.

    An observer runs thousands of Python calls for each call that it observes, and each would be an
    event.
    """
    if not _hooks or sys.getprofile() is not _hooks[-1]:
        return None
    sys.setprofile(None)
    return _hooks[-1]


def resume(hook: Hook | None) -> None:
    """Switch a hook on again that :func:`pause` switched off."""
    if hook is not None:
        sys.setprofile(hook)
