"""Parts that a line slices off one tensor one after the other: where they begin, and what nothing reads."""

from __future__ import annotations

from collections import Counter
from dataclasses import field
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ... import sources
from ...lean import dataclass
from ...objects.weak import ByTensor
from .watch import Watch, in_backward, operands, tensors_in

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from types import FrameType

    from ...findings import Location

SLICING = frozenset({"__getitem__", "narrow"})
_MOST = 4000

Span = tuple[int, int, int]
"""A dimension, and the first entry of a part and the one behind its last."""
Shape = tuple[int, ...]


def span_of(name: str, args: Any, kwargs: Any = None) -> Span | None:
    """Return what a call of :data:`SLICING` takes of a tensor; None where that is not one part of one dimension.

    Args:
        name: Of the function.
        args: The tensor, and the index or the dimension, start and length.
        kwargs: Any others make it unknown.
    """
    tensor, *rest = args
    if kwargs or not isinstance(tensor, Tensor):
        return None
    if name == "narrow":
        if len(rest) != 3 or not all(type(n) is int for n in rest):
            return None
        dim, start, length = rest
        dim, start = dim % tensor.dim(), start % max(tensor.shape[dim], 1)
        return dim, start, start + length
    keys = rest[0] if isinstance(rest[0], tuple) else (rest[0],)
    if not all(isinstance(key, slice) or key is Ellipsis for key in keys):
        return None
    behind = len(keys) - 1 - keys.index(Ellipsis) if Ellipsis in keys else 0
    found = None
    for n, key in enumerate(keys):
        if key is Ellipsis or key == slice(None):
            continue
        dim = n if Ellipsis not in keys[:n] else tensor.dim() - behind + n - (len(keys) - behind)
        start, stop, step = key.indices(tensor.shape[dim])
        if found is not None or step != 1 or start >= stop:
            return None
        found = dim, start, stop
    return found


def side_by_side(spans: Collection[Span], size: int) -> bool:
    """Say whether parts are as long as all of a dimension together, and two of them begin at one place."""
    starts = Counter(start for _, start, _ in spans)
    return max(starts.values()) > 1 and sum(stop - start for _, start, stop in spans) == size


def left_out(spans: Collection[Span], size: int) -> list[tuple[int, int]]:
    """Return the entries of a dimension that no part holds, as firsts and ends."""
    free, at = [], 0
    for _, start, stop in sorted(spans, key=lambda span: span[1]):
        if start > at:
            free.append((at, start))
        at = max(at, stop)
    return [*free, (at, size)] if at < size else free


class Slices:
    """Follows the parts that are sliced off each tensor: a cheap look, which lines are not part of."""

    def __init__(self) -> None:
        self._known: ByTensor[dict[int, list[Span]]] = ByTensor()
        self._every: list[tuple[Shape, dict[int, list[Span]]]] = []

    def called(self, name: str, args: Any) -> None:
        """See a call of :data:`SLICING`."""
        if name == "__getitem__" and not isinstance(args[1], slice | tuple):
            return
        if len(self._every) >= _MOST or (span := span_of(name, args)) is None:
            return
        spans = self._known.get(args[0])
        if spans is None:
            self._known[args[0]] = spans = {}
            self._every.append((tuple(args[0].shape), spans))
        spans.setdefault(span[0], []).append(span)

    def found(self) -> set[Shape]:
        """Return the shapes of tensors that their parts would fill, of which one was taken again, and another never."""
        return {
            shape
            for shape, dims in self._every
            for dim, spans in dims.items()
            if len({start for _, start, _ in spans}) < len(spans)
            and sum(stop - start for _, start, stop in spans) >= shape[dim]
            and left_out(spans, shape[dim])
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Sliced:
    """One expression that takes parts of a tensor which would fill a dimension, some of them from one place.

    Attributes:
        shape: Of the tensor.
        spans: The parts, in order.
        unread: The entries of their dimension that nothing reads, as firsts and ends.
        file, function: Where the expression stands.
        instruction: Which of the function's it is.
        position: Its first and last line, and its first and last column.
    """

    shape: Shape
    spans: tuple[Span, ...]
    unread: tuple[tuple[int, int], ...]
    file: str
    function: str
    instruction: int
    position: tuple[int | None, int | None, int | None, int | None]

    @property
    def location(self) -> Location:
        """The line."""
        return sources.of_line(self.file, self.position[0] or 0, self.function)


@dataclass(slots=True)
class _Read:
    """How a tensor was read: whole, or by parts, each with the frame and the instruction that took it."""

    shape: Shape
    whole: bool = False
    parts: list[tuple[Span, FrameType, int]] = field(default_factory=list)


class SliceWatch(Watch):
    """Tells which expressions take parts of tensors, within one call of their function.

    Args:
        shapes: Of the tensors to follow.
    """

    def __init__(self, shapes: Collection[Shape]) -> None:
        super().__init__()
        self._shapes = shapes
        self._known: ByTensor[_Read] = ByTensor()
        self._every: list[_Read] = []

    def after(
        self, func: Callable[..., Any], args: Any, kwargs: Any, result: Any, token: Any
    ) -> None:
        """Note what a call reads of the tensors that are followed."""
        if in_backward() or next(tensors_in(result), None) is None:
            return
        name = getattr(func, "__name__", "")
        for tensor in operands(args, kwargs):
            if tuple(tensor.shape) not in self._shapes or len(self._every) >= _MOST:
                continue
            if (read := self._known.get(tensor)) is None:
                self._known[tensor] = read = _Read(tuple(tensor.shape))
                self._every.append(read)
            taken = name in SLICING and tensor is args[0]
            span = span_of(name, args, kwargs) if taken else None
            frame = _frame(self)
            if span is None or frame is None:
                read.whole = True
            else:
                read.parts.append((span, frame, frame.f_lasti))

    def found(self) -> Iterator[Sliced]:
        """Iterate over expressions whose parts would fill a dimension side by side and do not; let go of the run."""
        reads, self._every = self._every, []
        for read in reads:
            if read.whole or len({span[0] for span, *_ in read.parts}) != 1:
                continue
            size = read.shape[read.parts[0][0][0]]
            unread = left_out([span for span, *_ in read.parts], size)
            groups: dict[tuple[int, int], list[tuple[Span, FrameType, int]]] = {}
            for part in read.parts:
                groups.setdefault((id(part[1]), part[2]), []).append(part)
            for parts in groups.values():
                spans = tuple(span for span, *_ in parts)
                if unread and len(spans) > 1 and side_by_side(spans, size):
                    code, at = parts[0][1].f_code, parts[0][2]
                    yield Sliced(
                        shape=read.shape,
                        spans=spans,
                        unread=tuple(unread),
                        file=code.co_filename,
                        function=getattr(code, "co_qualname", code.co_name),
                        instruction=at,
                        position=next(islice(code.co_positions(), at // 2, None), (None,) * 4),
                    )


class Moving(Watch):
    """Gives entries of tensors other values just before an expression takes the first part of them.

    Args:
        sliced: The expression; it alone reads these tensors.
        left: Whether to move the entries that nothing reads, or those that its parts hold.
    """

    def __init__(self, sliced: Sliced, *, left: bool) -> None:
        super().__init__()
        self._sliced, self._done = sliced, ByTensor[bool]()
        self._entries = torch.zeros(sliced.shape[sliced.spans[0][0]], dtype=torch.bool)
        for start, stop in sliced.unread if left else [(a, b) for _, a, b in sliced.spans]:
            self._entries[start:stop] = True

    def before(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Write to the tensor of a call, if it is one of these."""
        tensor = args[0] if args and getattr(func, "__name__", "") in SLICING else None
        if not isinstance(tensor, Tensor) or tuple(tensor.shape) != self._sliced.shape:
            return
        if (
            self._done.get(tensor)
            or not tensor.is_floating_point()
            or isinstance(tensor, nn.Parameter)
        ):
            return
        frame, sliced = _frame(self), self._sliced
        if frame is None or (frame.f_code.co_filename, frame.f_lasti) != (
            sliced.file,
            sliced.instruction,
        ):
            return
        self._done[tensor] = True
        dim, index = sliced.spans[0][0], self._entries.nonzero()[:, 0].to(tensor.device)
        with torch.no_grad():
            taken = tensor.index_select(dim, index)
            tensor.index_copy_(dim, index, taken.flip(dim) * 1.5 + 0.5)


def _frame(watch: Watch) -> FrameType | None:
    """Return the innermost running frame outside of torch."""
    return next((f for f in watch.frames() if sources.rank(f.f_code.co_filename)), None)
