"""How long an explanation may take: it gives up when its time is over, and the finding remains without it.

The deadline is cooperative. Whoever explains asks :func:`keep` before each run of the model, each
torch call that is recorded and each search of a source file; nothing interrupts the user's code. What
reads source and messages may take long without any of these: a thread interrupts it, and nothing else.
"""

from __future__ import annotations

import contextlib
import ctypes
import inspect
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

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
            with _interrupted_after(self._left, _caller()):
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


_HERE: Final = os.path.dirname(os.path.realpath(__file__)) + os.sep
_READS: Final = tuple(_HERE + part for part in ("diagnosis", "sources", "text", "explanation.py"))
"""What only reads: source, messages and measured facts. It holds nothing that must be put back."""
_PASSES_ON: Final = (_HERE + "codes", os.path.realpath(contextlib.__file__))
"""What calls the former, and must not be interrupted itself."""
_LIBRARY: Final = os.path.dirname(os.path.realpath(os.__file__)) + os.sep
_POLL: Final = 0.02


@contextlib.contextmanager
def _interrupted_after(seconds: float, base: FrameType | None) -> Iterator[None]:
    """Interrupt what the block does once its time is over, wherever it only reads.

    Args:
        seconds: Wall time.
        base: The frame that explains; what it calls is looked at.
    """
    over, thread = threading.Event(), threading.get_ident()
    lock = threading.Lock()
    bases = [base]  # emptied in the end: a thread that has not woken yet must not keep the frame
    del base

    def watch() -> None:
        wait = max(seconds, 0.0) + _POLL
        while not over.wait(wait):
            wait = _POLL
            with lock:  # this thread holds the interpreter: the other one stands where it is seen
                if not over.is_set() and _only_reads(sys._current_frames().get(thread), bases[0]):
                    error = ctypes.py_object(TooLongError)
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), error)
                    return

    watcher = threading.Thread(target=watch, name="torchcheck-deadline", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        with lock:
            over.set()
            bases.clear()


def _caller() -> FrameType | None:
    """Return the frame whose block runs: those of context managers stand still meanwhile."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and (
        frame.f_code.co_flags & inspect.CO_GENERATOR
        or frame.f_code.co_filename == contextlib.__file__
    ):
        frame = frame.f_back
    return frame


def _only_reads(frame: FrameType | None, base: FrameType | None) -> bool:
    """Say whether all that runs above a frame belongs to what only reads."""
    if frame is None or frame is base or _file(frame).startswith(_PASSES_ON):
        return False
    while frame is not None and frame is not base:
        file = _file(frame)
        library = file.startswith(_LIBRARY) and "site-packages" not in file
        if not file.startswith((*_READS, *_PASSES_ON)) and not library:
            return False
        frame = frame.f_back
    return frame is not None


def _file(frame: FrameType) -> str:
    return os.path.realpath(frame.f_code.co_filename)
