"""Views that give an axis its old size at another place, while the elements stay in their order."""

from __future__ import annotations

import itertools
import math
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...lean import dataclass
from ..recorded.slices import SLICING, Slices
from ..recorded.watch import readable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ...findings import Location

_VIEWS = frozenset({"view", "reshape", "view_as", "reshape_as"})
_SLICES = frozenset({"__getitem__", "narrow", "select", "split", "chunk", "unbind", "index_select"})
SEEN = _VIEWS | _SLICES
_MOST = 400
_LONGEST = 6  # dimensions of which every order is tried: 720

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """A view whose result has a dimension as large as one of its operand, which holds other elements.

    Attributes:
        module: Qualified name of the module in which it ran.
        name: Such as ``view``.
        given, made: The shapes.
        was, now: The dimension of ``given``, and that of ``made``.
        certain: Whether no other division of the dimensions gives this view: 6 x 4 as 4 x 6. A view
            of 8 x 4 as 4 x 8 may halve the first dimension.
        location: The line.
    """

    module: str
    name: str
    given: Shape
    made: Shape
    was: int
    now: int
    certain: bool
    location: Location | None


class Views:
    """Follows the views of a run.

    What is sliced right after is left out: relative positions are shifted by a view as wide as the
    padded rows, of which the first is dropped.

    Attributes:
        seen: The number of views of two dimensions or more.
        slices: The parts that were sliced off each tensor.
    """

    def __init__(self) -> None:
        self.seen = 0
        self._found: dict[int, tuple[weakref.ref[Tensor], Moved]] = {}
        self._kept: list[Moved] = []
        self._cut: dict[int, weakref.ref[Tensor]] = {}
        self.slices = Slices()

    @property
    def found(self) -> list[Moved]:
        """Return those that move a dimension and were not sliced, in the order of the run."""
        return self._kept + [moved for _, moved in self._found.values()]

    def called(
        self,
        name: str,
        args: tuple[Any, ...],
        result: Any,
        module: str,
        locate: Callable[[], Location | None],
    ) -> None:
        """See a call of :data:`SEEN`."""
        given = args[0] if args else None
        if not isinstance(given, Tensor):
            return
        if name in SLICING:
            self.slices.called(name, args)
        if name in _SLICES:
            known = self._found.get(id(given))
            if known is not None and known[0]() is given:
                del self._found[id(given)]
                results = result if isinstance(result, tuple | list) else (result,)
                self._cut.update((id(t), weakref.ref(t)) for t in results if isinstance(t, Tensor))
            return
        if not _plain(given) or not isinstance(result, Tensor) or not _plain(result):
            return
        self.seen += 1
        cut = self._cut.get(id(given))
        if (cut is not None and cut() is given) or len(self._kept) + len(self._found) >= _MOST:
            return
        shapes = tuple(given.shape), tuple(result.shape)
        if (found := moved(*shapes)) is None:
            return
        was, now, certain = found
        old = self._found.pop(id(result), None)
        if old is not None:  # its tensor is gone, and this one has its place in memory
            self._kept.append(old[1])
        self._found[id(result)] = (
            weakref.ref(result),
            Moved(
                module=module, name=name, given=shapes[0], made=shapes[1], was=was, now=now,
                certain=certain, location=locate(),
            ),
        )  # fmt: skip


def _plain(tensor: Tensor) -> bool:
    return (
        tensor.is_floating_point()
        and tensor.layout == torch.strided
        and not tensor.is_nested
        and tensor.dim() > 1
        and tensor.numel() > 0
    )


def moved(given: Shape, made: Shape) -> tuple[int, int, bool] | None:
    """Return a dimension of the operand, that of the result which has its size, and whether no other reading exists.

    A view keeps the elements in their order, so a dimension stays itself where as many elements
    stand before it as before. None where every size that is kept is kept in its place.
    """
    for before, after in _groups(given, made):
        start = math.prod(given[: before[0]])
        ends_given = _ends(given, before, start)
        ends_made = _ends(made, after, start)
        for now in after:
            same = [axis for axis in before if given[axis] == made[now]]
            starts = [ends_given[axis] // given[axis] for axis in same]
            if same and ends_made[now] // made[now] not in starts:
                ends = sorted({*ends_given.values(), *ends_made.values()})
                whole = all(two % one == 0 for one, two in itertools.pairwise(ends))
                return same[0], now, not whole or _in_place(given, made, same[0], now)
    return None


def _in_place(given: Shape, made: Shape, was: int, now: int) -> bool:
    """Say whether a dimension keeps size and place between two others that trade a factor: heads by a bare view."""
    if was != now or len(given) != len(made) or not 0 < now < len(made) - 1:
        return False
    return given[now - 1] != made[now - 1] and given[now + 1] != made[now + 1]


def _ends(shape: Shape, axes: Sequence[int], start: int) -> dict[int, int]:
    """Return how many elements of the slower kind each dimension closes, from those before the group on."""
    products = itertools.accumulate(
        (shape[a] for a in axes), lambda one, two: one * two, initial=start
    )
    return dict(zip(axes, list(products)[1:], strict=True))


def _groups(given: Shape, made: Shape) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the smallest runs of dimensions that hold the same elements, where both have two or more."""
    ones = [[axis for axis, size in enumerate(shape) if size != 1] for shape in (given, made)]
    left, right = iter(ones[0]), iter(ones[1])
    before, after, sizes = [], [], [1, 1]
    while True:
        if sizes[0] <= sizes[1]:
            axis = next(left, None)
            if axis is None:
                return
            before.append(axis)
            sizes[0] *= given[axis]
        else:
            axis = next(right, None)
            if axis is None:
                return
            after.append(axis)
            sizes[1] *= made[axis]
        if sizes[0] == sizes[1]:
            if len(before) > 1 and len(after) > 1:
                yield before, after
            before, after, sizes = [], [], [1, 1]


def order(given: Shape, made: Shape) -> tuple[int, ...] | None:
    """Return an order of the operand's dimensions in which each kept size is kept in its place, or None."""
    axes = [axis for axis, size in enumerate(given) if size != 1]
    if not 1 < len(axes) <= _LONGEST:
        return None
    for way in itertools.permutations(axes):
        shape = tuple(given[axis] for axis in way)
        if next(_groups(shape, made), None) is None:
            places = iter(way)
            return tuple(axis if given[axis] == 1 else next(places) for axis in range(len(given)))
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleChoice:
    """A choice by index along a dimension in which all entries are equal.

    Attributes:
        op: The call that chooses.
        location: Its line.
        made: The line that makes the copies; None before it is looked for.
        dim: The dimension.
        shape: Of what is chosen from.
    """

    op: str
    location: Location | None
    made: Location | None = None
    dim: int
    shape: tuple[int, ...]


CHOICES = frozenset({"gather", "index_select", "take_along_dim", "__getitem__"})
"""Bare names of the calls that :class:`Choices` is to see."""


class Choices:
    """Finds choices along a dimension in which all entries are equal, though the samples are not."""

    def __init__(self) -> None:
        self._found: list[IdleChoice] = []
        self._others: set[Location | None] = set()

    def called(
        self, name: str, args: Any, kwargs: Any, locate: Callable[[], Location | None]
    ) -> None:
        """See one call."""
        given = args[0] if args else None
        if not isinstance(given, Tensor) or not given.ndim or not given.is_floating_point():
            return
        if (dim := _indexed(name, args, kwargs)) is None or not readable(given):
            return
        place, dim, shape = locate(), dim % given.ndim, tuple(given.shape)
        if not equal_along(given.detach(), dim):
            self._others.add(place)
        elif len(self._found) < _MOST:
            self._found.append(IdleChoice(op=name, location=place, dim=dim, shape=shape))

    @property
    def found(self) -> list[IdleChoice]:
        """Those on lines that choose among nothing else: beams begin as copies, too, and samples are repeated."""
        return [one for one in self._found if one.location not in self._others]


def equal_along(values: Tensor, dim: int) -> bool:
    """Say whether all entries along a dimension other than the first are equal, while those along the first are not."""
    if not 0 < dim < values.ndim or values.shape[dim] < 2 or not values.numel():
        return False
    one = values.narrow(dim, 0, 1)
    alike = torch.equal(one, values.narrow(dim, 1, 1)) and bool((values == one).all())
    return alike and not bool((one == one[:1]).all())


def _indexed(name: str, args: Any, kwargs: Mapping[str, Any]) -> int | None:
    """Return the dimension along which a call of :data:`CHOICES` takes elements by one tensor of whole numbers."""
    if name != "__getitem__":
        position = 2 if name == "take_along_dim" else 1
        dim = kwargs.get("dim", args[position] if len(args) > position else None)
        return dim if isinstance(dim, int) else None
    parts = args[1] if isinstance(args[1], tuple) else (args[1],)
    whole = [n for n, part in enumerate(parts) if isinstance(part, Tensor) and part.ndim]
    plain = all(isinstance(part, slice | Tensor) for part in parts[: whole[0]]) if whole else False
    if len(whole) != 1 or not plain or parts[whole[0]].dtype == torch.bool:
        return None
    return whole[0]
