"""Exceptions that are no ``Exception``: which of them end a run, and which are a defect of the code that raises them."""

from __future__ import annotations

import signal
import traceback

from .text.printable import message_of


class UserCodeError(Exception):
    """The user's code raised: never a defect of this package."""


def interrupts(error: BaseException) -> bool:
    """Say whether an exception is to end what runs: Ctrl-C, a deadline, or what a signal handler raised."""
    if isinstance(error, KeyboardInterrupt | GeneratorExit):
        return True
    if type(error).__module__.startswith(f"{__package__}."):
        return True
    handlers = {getattr(signal.getsignal(s), "__code__", None) for s in signal.valid_signals()}
    return any(f.f_code in handlers for f, _ in traceback.walk_tb(error.__traceback__))


def kept_in(error: BaseException) -> Exception:
    """Return an ``Exception`` of the same name, message and traceback.

    A test framework's skip out of a forward, a loss or a step, or a ``sys.exit()`` there, would get
    through everything that keeps errors in, and let a check pass for one that did not apply.
    """
    kind = type(type(error).__name__, (Exception,), {})
    made: Exception = kind(message_of(error)).with_traceback(error.__traceback__)
    return made
