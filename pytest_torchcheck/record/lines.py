"""The one place that sets Python's line tracer: whoever asks which lines run hands over a trace function."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    Tracer = Callable[[FrameType, str, Any], Any]


@contextlib.contextmanager
def traced(enter: Tracer | None) -> Iterator[None]:
    """Trace the functions that are called within the block, in this thread.

    The tracer of a debugger or of coverage is put back at the end.

    Args:
        enter: What :func:`sys.settrace` takes: called with each new frame and ``"call"``. It returns the
            trace function of that frame's lines, or None where they do not matter. None itself traces nothing.
    """
    before = sys.gettrace()
    sys.settrace(enter)
    try:
        yield
    finally:
        sys.settrace(before)
