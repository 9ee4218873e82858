"""Exceptions that are no ``Exception``: which of them end a run, and which are a defect of the code that raises them."""

from __future__ import annotations

import contextlib
import functools
import signal
import traceback
from typing import TYPE_CHECKING, Any, ParamSpec

from .text.printable import message_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from types import TracebackType

_P = ParamSpec("_P")


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
    trace = BaseException.__dict__["__traceback__"].__get__(error)
    kind = _stand_in(type(error).__name__, type(error).__module__)
    return kind(message_of(error)).with_traceback(trace)


@functools.lru_cache(maxsize=64)
def _stand_in(name: str, module: str) -> type[Exception]:
    return type(name, (Exception,), {"__module__": module})


class Readable:
    """A block around another one, out of which comes no exception that refuses to be looked at.

    Args:
        block: The other one; it too gets an ``Exception`` of the same name and traceback in its place.
    """

    __slots__ = ("_block",)

    def __init__(self, block: AbstractContextManager[Any]) -> None:
        self._block = block

    def __enter__(self) -> Any:
        return self._block.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        try:
            _ = error.__class__, getattr(error, "__traceback__", None)
        except Exception:  # its own __getattribute__ may raise anything
            assert error is not None
            made = kept_in(error)
            if self._block.__exit__(type(made), made, trace):
                return True
            raise made from None
        return self._block.__exit__(kind, error, trace)


def readable(block: Callable[_P, Iterator[None]]) -> Callable[_P, Readable]:
    """Make a context manager of a generator function, as ``contextlib`` does, that is :class:`Readable`."""
    made = contextlib.contextmanager(block)

    @functools.wraps(block)
    def readably(*args: _P.args, **kwargs: _P.kwargs) -> Readable:
        return Readable(made(*args, **kwargs))

    return readably
