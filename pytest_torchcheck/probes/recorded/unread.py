"""Which results of a forward nothing reads, and the lines to which values came back: as a cheap count in a watched run, and with lines in a second one."""

from __future__ import annotations

import os
import sys
import weakref
from collections import Counter
from dataclasses import field
from itertools import islice
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ... import sources
from ...lean import dataclass
from ...objects.trees import same
from ...record.lines import traced
from .watch import Watch, in_backward, name_of, operands, readable, tensors_in, version_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import FrameType, TracebackType

    from ...findings import Location
    from .recording import Recorder
    from .values import Call, Value


_MOST = 50_000
_FRAMES = 6
_SMALL = 1 << 16


@dataclass(slots=True)
class _Made:
    """What one call returned: living tensors, and which of them anything was given."""

    tensors: dict[int, weakref.ref[Tensor]]
    key: Any
    read: set[int] = field(default_factory=set)

    def lost(self, tensor: int) -> bool:
        """Say whether a tensor, by its id then, was never read and is gone."""
        return tensor not in self.read and self.tensors[tensor]() is None


class Reads:
    """Follows which results are given to a later call.

    A result counts as read as soon as any torch function is given any tensor of it, and as kept while it
    is alive: an output, an attribute, what autograd saves.
    """

    def __init__(self) -> None:
        self._every: list[_Made] = []
        self._latest: dict[int, _Made] = {}

    def given(self, tensors: Iterable[Tensor]) -> None:
        """Note that a call reads some tensors."""
        for tensor in tensors:
            made = self._latest.get(id(tensor))
            # an id is reused once its tensor is gone
            if made is not None and made.tensors[id(tensor)]() is tensor:
                made.read.add(id(tensor))

    def returned(self, key: Any, given: list[Tensor], result: Any) -> None:
        """Note what a call gives back, where that is new and was computed from tensors.

        Args:
            key: What the call is known by, for :meth:`unread`.
            given: The tensors that it was given.
            result: What it returned.
        """
        if not given or len(self._every) >= _MOST:
            return
        known = {id(t) for t in given}
        new = [result] if isinstance(result, Tensor) else list(tensors_in(result))
        new = [t for t in new if id(t) not in known]
        if new:
            made = _Made({id(t): weakref.ref(t) for t in new}, key)
            self._every.append(made)
            for tensor in new:
                self._latest[id(tensor)] = made

    def in_order(self, key: Any) -> list[bool]:
        """Return of each result of the calls that a key stands for whether it was read."""
        return [bool(m.read) for m in self._every if m.key == key]

    def unread(self) -> list[Any]:
        """Return the keys of the calls whose results were never read, and are gone."""
        return [m.key for m in self._every if not m.read and all(map(m.lost, m.tensors))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a function was called.

    Attributes:
        op: Name of the function, such as ``F.relu``.
        file, function: The innermost running code outside of torch.
        span: First line, last line, first column and last column of the expression that it runs.
        above: File, instruction and line of what had called it, which tells calls of one function from each other.
    """

    op: str
    file: str
    function: str
    span: tuple[int | None, int | None, int | None, int | None]
    above: tuple[tuple[str, int, int], ...]


class UnreadWatch(Watch):
    """Tells on which lines of the user's the results are that nothing reads.

    Attributes:
        unread: After the block, the places of which no result was read.
        read: Those of which one was.
        last: Those of which the result of one call alone was, with how often they were called.
        made: How often each was called.
        missed: How many of its results nothing read.
    """

    def __init__(self) -> None:
        super().__init__()
        self._reads = Reads()
        self.made: Counter[Place] = Counter()
        self.missed: Counter[Place] = Counter()
        self.unread: list[Place] = []
        self.read: set[Place] = set()
        self.last: dict[Place, int] = {}

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, traceback)
        self.missed = unread = Counter(self._reads.unread())
        self.unread = [place for place, n in unread.items() if n == self.made[place]]
        self.read = {place for place in self.made if place not in self.unread}
        self.last = {p: n for p, n in self.made.items() if n > 2 and unread[p] == n - 1}

    def before(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Note what is read, and what a call could write to."""
        if in_backward():
            return None
        given = operands(args, kwargs)
        self._reads.given(given)
        return [(t, version_of(t), _copy(t)) for t in given]

    def after(
        self, func: Callable[..., Any], args: Any, kwargs: Any, result: Any, token: Any
    ) -> None:
        """Note what is returned, unless the call wrote to something: then it did its work."""
        if token is None or any(_written(*one) for one in token):
            return
        place = self._place(name_of(func))
        if place is not None:
            self.made[place] += 1
            self._reads.returned(place, [t for t, *_ in token], result)

    def _place(self, op: str) -> Place | None:
        """Return where the code outside of torch stands."""
        frames = [f for f in self.frames() if sources.rank(f.f_code.co_filename)][:_FRAMES]
        if not frames:
            return None
        code = frames[0].f_code
        span = next(islice(code.co_positions(), frames[0].f_lasti // 2, None), (None,) * 4)
        return Place(
            op=op,
            file=code.co_filename,
            function=getattr(code, "co_qualname", code.co_name),
            span=span,
            above=tuple((f.f_code.co_filename, f.f_lasti, f.f_lineno) for f in frames[1:]),
        )


def _copy(tensor: Tensor) -> Tensor | None:
    """Return the values of a tensor that a kernel may write to without a count, as running statistics."""
    plain = not tensor.requires_grad and tensor.is_floating_point() and readable(tensor)
    return tensor.detach().clone() if plain and tensor.numel() <= _SMALL else None


def _written(tensor: Tensor, version: int | None, values: Tensor | None) -> bool:
    return version_of(tensor) != version or (values is not None and not same(tensor, values))


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
