"""What checks ask of an accelerator: the few calls that only a GPU answers, in one place, so that tests stand in for it."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from typing import TYPE_CHECKING, Any, Protocol

import torch

from .. import sources
from ..lean import dataclass
from ..state import Precision, flags_settable, rounded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from ..findings import Location

_SYNC = "synchronizing CUDA operation"
_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_PASSES_ON = frozenset({"around", "__torch_function__", "__torch_dispatch__"})
_INHERENT = tuple(os.path.join("torch", part, "") for part in ("amp", "optim"))


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSync:
    """The host waited for the device.

    Attributes:
        location: The user's line; None in a part of torch that cannot do without, such as a
            scaler's step.
        message: What torch said.
    """

    location: Location | None
    message: str


class Accelerator(Protocol):
    """A device on which work is queued; :class:`Cuda` is the real one."""

    def precision(self, *, tf32: bool) -> contextlib.AbstractContextManager[None]:
        """Allow or forbid TF32 in products and convolutions, and let no benchmark choose kernels."""
        ...

    def host_syncs(self) -> contextlib.AbstractContextManager[list[HostSync]]:
        """Note every operation for which the host waits, with the user's line."""
        ...

    def other_stream(self) -> contextlib.AbstractContextManager[None]:
        """Queue work on a stream that is not the default one; both wait for each other at the ends."""
        ...

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        """Record what a function queues, after it has run as a warm-up, and return what replays it."""
        ...


class Cuda:
    """CUDA by torch's own calls; needs torch 2.11 or newer, and nothing newer."""

    @contextlib.contextmanager
    def precision(self, *, tf32: bool) -> Iterator[None]:
        """Set the flags that decide how products are computed, and put them back."""
        cudnn: Any = torch.backends.cudnn
        before, benchmark = Precision.now(), cudnn.benchmark
        try:
            rounded(tf32=tf32)
            with flags_settable():
                cudnn.benchmark = False
            yield
        finally:
            before.put_back()
            with flags_settable():
                cudnn.benchmark = benchmark

    @contextlib.contextmanager
    def host_syncs(self) -> Iterator[list[HostSync]]:
        """Turn on torch's own watch, whose warnings come while the user's line still runs."""
        found: list[HostSync] = []
        before = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = _noting(found)
            torch.cuda.set_sync_debug_mode("warn")
            try:
                yield found
            finally:
                torch.cuda.set_sync_debug_mode(before)

    @contextlib.contextmanager
    def other_stream(self) -> Iterator[None]:
        """Let a new stream follow the current one, and the current one it."""
        current, other = torch.cuda.current_stream(), torch.cuda.Stream()
        other.wait_stream(current)
        try:
            with torch.cuda.stream(other):
                yield
        finally:
            current.wait_stream(other)
        torch.cuda.synchronize()

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        """Warm up on another stream, as torch asks for, then capture a CUDA graph.

        Other threads of the process may go on using CUDA meanwhile (a loader that pins memory). A
        capture that fails leaves torch on its stream, and random generators that wait for its end:
        both are put back.
        """
        with self.other_stream():
            for _ in range(3):
                run()
        graph = torch.cuda.CUDAGraph()
        stream, generator = torch.cuda.current_stream(), _default_generator()
        kept = generator.clone_state()
        try:
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                run()
        except BaseException:
            torch.cuda.set_stream(stream)
            generator.graphsafe_set_state(kept)
            raise

        def replay() -> None:
            graph.replay()
            torch.cuda.synchronize()

        return replay


def _default_generator() -> Any:
    return torch.cuda.default_generators[torch.cuda.current_device()]


def _noting(found: list[HostSync]) -> Callable[..., None]:
    def note(message: Warning | str, *_rest: object, **_fields: object) -> None:
        if _SYNC in str(message):
            frame: FrameType | None = sys._getframe(1)
            while frame is not None and frame.f_globals.get("__name__") == "warnings":
                frame = frame.f_back
            said = str(message).split("(")[0]
            if _is_inherent(frame):
                found.append(HostSync(location=None, message=said))
            elif (place := _user_line(frame)) is not None:
                found.append(HostSync(location=place, message=said))

    return note


def _is_inherent(frame: FrameType | None) -> bool:
    return frame is not None and any(part in frame.f_code.co_filename for part in _INHERENT)


def _user_line(frame: FrameType | None) -> Location | None:
    """Return the user's innermost line within what this package called; None where the package itself waits.

    Its watches, through which calls of the user's pass on to torch, wait for nothing.
    """
    while frame is not None:
        name, function = frame.f_code.co_filename, frame.f_code.co_name
        if name.startswith(_HERE) and function not in _PASSES_ON:
            return None
        if not name.startswith(_HERE) and sources.rank(name) == 2:
            return sources.of_frame(frame, until=frame)
        frame = frame.f_back
    return None


_CURRENT: list[Accelerator] = [Cuda()]


def current() -> Accelerator:
    """Return the accelerator that checks use."""
    return _CURRENT[-1]


@contextlib.contextmanager
def replaced(other: Accelerator) -> Iterator[None]:
    """Let checks use another accelerator inside, such as one that a test simulates."""
    _CURRENT.append(other)
    try:
        yield
    finally:
        _CURRENT.pop()
