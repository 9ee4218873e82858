"""Where values came back to: the user's lines of the calls that returned them, and whether they had a graph."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from ... import sources
from ...record.lines import traced
from .watch import tensors_in

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from torch import Tensor

    from ...findings import Location
    from .recording import Recorder
    from .values import Call, Value


class Returned:
    """Notes each tensor that a function of the user's gives back to another one, while a run lasts.

    Args:
        recorder: Of the same run; tells what was computed before a tensor came back.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._until: FrameType | None = None
        # the tensor is kept, because an id is reused once its object is gone
        self._found: dict[int, tuple[Tensor, int, Location]] = {}
        self._calls: dict[tuple[str, str], dict[Location, bool]] = {}

    def watching(self, run: Callable[[], object]) -> Callable[[], object]:
        """Return a function that runs the same and notes what comes back; a tracer that was set is put back."""

        def watched() -> object:
            self._until = sys._getframe()
            try:
                with traced(self._enter):
                    return run()
            finally:
                self._until = None

        return watched

    def line(self, value: Value, maker: Call) -> Location | None:
        """Return the line to which a value came back after it was made, the outermost; None where it never did."""
        tensor, made, location = self._found.get(id(value.tensor), (None, 0, None))
        if tensor is not value.tensor or made <= self._recorder.calls.index(maker):
            return None
        return location

    def callers(self, place: Location) -> tuple[Location, ...]:
        """Return the lines that called the function around a place and got back tensors, in the order of the run."""
        return tuple(self._calls.get((place.file, place.function), ()))

    def losing(self, place: Location) -> tuple[Location, ...]:
        """Return the lines that called the function around a place, where nothing that it gave back had a graph.

        Where the functions of these lines give back nothing with a graph either, the lines that
        called the outermost one come first: those whose function goes on with a graph.
        """
        found: list[Location] = []
        seen: set[tuple[str, str]] = set()
        inner = [place]
        while inner:
            key = (inner[0].file, inner[0].function)
            calls = self._calls.get(key, {})
            if key in seen or not calls or any(calls.values()):
                break
            if len({(line.file, line.function) for line in calls}) > 1:
                return (*calls, *found)
            seen.add(key)
            inner = list(calls)
            found = [*inner, *found]
        return tuple(found)

    def release(self) -> None:
        """Let go of every tensor of the run."""
        self._found.clear()

    def _enter(self, frame: FrameType, event: str, _: Any) -> Any:
        if event != "call" or sources.rank(frame.f_code.co_filename) < 2:
            return None
        frame.f_trace_lines = False
        return self._left

    def _left(self, frame: FrameType, event: str, result: Any) -> Any:
        if event != "return" or result is None:
            return self._left
        tensors = list(tensors_in(result))
        if tensors and (line := sources.of_frame(frame.f_back, until=self._until)) is not None:
            made = len(self._recorder.calls)
            self._found.update({id(tensor): (tensor, made, line) for tensor in tensors})
            numbers = [tensor for tensor in tensors if tensor.is_floating_point()]
            if numbers:
                code = frame.f_code
                calls = self._calls.setdefault(
                    (os.path.abspath(code.co_filename), code.co_qualname), {}
                )
                live = any(tensor.requires_grad for tensor in numbers)
                calls[line] = calls.get(line, False) or live
        return self._left
