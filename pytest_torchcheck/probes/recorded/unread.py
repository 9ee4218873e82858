"""Which results of a forward nothing reads: as a cheap count in a watched run, and with lines in a second one."""

from __future__ import annotations

import weakref
from collections import Counter
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ... import sources
from ...objects.trees import same
from .watch import Watch, in_backward, name_of, operands, readable, tensors_in, version_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType

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
            if (made := self._latest.get(id(tensor))) is not None:
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

    def unread(self) -> list[Any]:
        """Return the keys of the calls whose results were never read, and are gone."""
        return [m.key for m in self._every if not m.read and all(map(m.lost, m.tensors))]

    def unread_parts(self) -> list[tuple[Any, int]]:
        """Return the keys of the calls of which another result was read, each with the number of one that was not."""
        return [
            (made.key, number)
            for made in self._every
            if made.read
            for number, tensor in enumerate(made.tensors)
            if made.lost(tensor)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a function was called.

    Attributes:
        op: Name of the function, such as ``F.relu``.
        file, function: The innermost running code outside of torch.
        span: First line, last line, first column and last column of the expression that it runs.
        above: What had called it, which tells calls of one function from each other.
    """

    op: str
    file: str
    function: str
    span: tuple[int | None, int | None, int | None, int | None]
    above: tuple[tuple[str, int], ...]


class UnreadWatch(Watch):
    """Tells on which lines of the user's the results are that nothing reads.

    Attributes:
        unread: After the block, the places of which no result was read.
        read: Those of which one was.
        parts: The places of which the same one of several results was never read, with its number.
    """

    def __init__(self) -> None:
        super().__init__()
        self._reads = Reads()
        self._made: Counter[Place] = Counter()
        self.unread: list[Place] = []
        self.read: set[Place] = set()
        self.parts: list[tuple[Place, int]] = []

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, traceback)
        unread = Counter(self._reads.unread())
        self.unread = [place for place, n in unread.items() if n == self._made[place]]
        parts = Counter(self._reads.unread_parts())
        self.parts = [part for part, n in parts.items() if n == self._made[part[0]]]
        self.read = {place for place in self._made if place not in self.unread}

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
            self._made[place] += 1
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
            above=tuple((f.f_code.co_filename, f.f_lasti) for f in frames[1:]),
        )


def _copy(tensor: Tensor) -> Tensor | None:
    """Return the values of a tensor that a kernel may write to without a count, as running statistics."""
    plain = not tensor.requires_grad and tensor.is_floating_point() and readable(tensor)
    return tensor.detach().clone() if plain and tensor.numel() <= _SMALL else None


def _written(tensor: Tensor, version: int | None, values: Tensor | None) -> bool:
    return version_of(tensor) != version or (values is not None and not same(tensor, values))
