"""How long an explanation may take: it gives up when its time is over, and the finding remains without it.

The deadline is cooperative. Whoever explains asks :func:`keep` before each run of the model, each
torch call that is
recorded and each search of a source file; no signal or thread interrupts the user's code. One run
that never calls
torch is therefore never cut short.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

SECONDS: Final = 30.0
"""Wall time for one explanation, far above what one takes: about 20 steps of the model."""

_allowed = SECONDS
_until: float | None = None


class TooLongError(BaseException):
    """An explanation is out of time.

    It is no ``Exception``, so that neither an explainer nor the user's code takes it for a failure
    of a run.
    """


class Budget:
    """The time of one explanation, which may be spent in parts.

    Args:
        seconds: Wall time; what :func:`allowed` sets by default.
    """

    def __init__(self, seconds: float | None = None) -> None:
        self.seconds = _allowed if seconds is None else seconds
        self._left = self.seconds

    @contextlib.contextmanager
    def spent(self) -> Iterator[None]:
        """Let the time run within the block; that of an explanation around this one, where there is one."""
        global _until
        if _until is not None:
            yield
            return
        start = time.monotonic()
        _until = start + self._left
        try:
            yield
        finally:
            _until = None
            self._left -= time.monotonic() - start


def running() -> bool:
    """Say whether an explanation is on its way."""
    return _until is not None


def keep() -> None:
    """Go on, unless an explanation is on its way and out of time.

    Raises:
        TooLongError: Its time is over.
    """
    if _until is not None and time.monotonic() > _until:
        raise TooLongError


@contextlib.contextmanager
def allowed(seconds: float) -> Iterator[None]:
    """Let every explanation that begins within the block take so many seconds."""
    global _allowed
    before, _allowed = _allowed, seconds
    try:
        yield
    finally:
        _allowed = before
