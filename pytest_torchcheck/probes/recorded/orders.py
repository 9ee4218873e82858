"""In which order the entries of a set stand in each value of a run, beside a run with them in another order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from ..positions.spread import origin
from .operations import aligned

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

    from .operations import Step, Trace
    from .watch import Op

_CLOSE: Final = 1e-5
_MOST: Final = 2**22
"""Distances between entries that are computed for one value, at most."""
_TAKING: Final = frozenset({"__getitem__", "index_select", "gather", "take_along_dim", "embedding"})
_BACK: Final = 8
"""Operations between two orders that meet and the first result that shows it, at most."""


class Both:
    """Two runs beside each other: of each value of the first, how its entries stand in the second."""

    def __init__(self, base: Trace, permuted: Trace, order: Tensor | None = None) -> None:
        self._base, self._permuted, self._order = base, permuted, order
        self._others: dict[int, int] = {}
        self._known: dict[int, str] = {}
        for a, b in aligned(base, permuted):
            if a is not None and b is not None:
                places = zip((*a.operands, *a.results), (*b.operands, *b.results), strict=True)
                self._others.update(places)

    def pair(self, place: int) -> tuple[Tensor | None, Tensor | None]:
        """Return a value of the first run, and the one of the second in its place."""
        other = self._others.get(place, place)
        return self._base.values[place].values, self._permuted.values[other].values

    def stands(self, place: int) -> str:
        """Say how a value stands; see :func:`_stands`."""
        assert self._order is not None
        if place not in self._known:
            self._known[place] = _stands(*self.pair(place), self._order)
        return self._known[place]


def _step_of(base: Trace, op: Op) -> Step | None:
    return next((step for step in base.steps if step.op is op), None)


def rows_moved(one: Tensor, two: Tensor, dim: int) -> Tensor | None:
    """Return by which entry of ``one`` each entry of ``two`` is equalled along a dimension, int64 [slices, entries].

    None where some entry equals none, or two entries are equal, so that their places cannot be told.
    """
    if one.shape != two.shape or not one.is_floating_point():
        return None
    size = one.shape[dim]
    a, b = (t.flatten(0, dim - 1) if dim else t[None] for t in (one.double(), two.double()))
    a, b = a.reshape(a.shape[0], size, -1), b.reshape(b.shape[0], size, -1)
    if a.shape[0] * size * size > _MOST or not bool(a.isfinite().all() & b.isfinite().all()):
        return None
    apart = torch.cdist(b, a, p=float("inf"))
    near, chosen = apart.min(2)
    allowed = _CLOSE * float(a.abs().max())
    alone = (apart <= allowed).sum(2) == 1
    every = chosen.sort(1).values == torch.arange(size, device=chosen.device)
    fits = bool((near <= allowed).all()) and bool(alone.all()) and bool(every.all())
    return chosen if fits else None


def reordering(base: Trace, permuted: Trace, until: Op, order: Tensor) -> Step | None:
    """Find what put entries in an order of their own before an operation that brings two orders together.

    Args:
        base: The reference run.
        permuted: The run with the entries in another order.
        until: An operation of the reference run whose result is not the same set of entries in both.
        order: The entry that stands at each place of ``permuted``'s inputs, int64.

    Returns:
        The operation whose result stands, beside the reference, neither as it was nor as the entries do, while
        all that it read does; None unless ``until`` reads such a result together with one in the entries' order.
    """
    last, stands = _step_of(base, until), Both(base, permuted, order).stands
    places = () if last is None else last.operands
    odd = next((place for place in places if stands(place) == "other"), None)
    if odd is None or not any(stands(place) == "moved" for place in places):
        return None
    return origin(base, odd, lambda place: stands(place) == "other")[0]


def scrambled(base: Trace, permuted: Trace, order: Tensor) -> Step | None:
    """Find what gives the samples of the outputs an order of their own: each row belongs to another sample.

    Args:
        base, permuted, order: As for :func:`reordering`.
    """
    stands = Both(base, permuted, order).stands
    odd = next((place for place in base.outputs if stands(place) == "other"), None)
    return None if odd is None else origin(base, odd, lambda place: stands(place) == "other")[0]


def settled(base: Trace, permuted: Trace, until: Op, order: Tensor) -> tuple[Step, Step] | None:
    """Find what puts entries in one order, whatever the one they came in, before they meet others of that order.

    Args:
        base, permuted, until, order: As for :func:`reordering`.

    Returns:
        What gave the one order, and what brings its result together with entries as they came.
    """
    meeting, stands = _step_of(base, until), Both(base, permuted, order).stands

    def settles(step: Step) -> bool:
        given = {base.values[p].shape for p in step.operands if stands(p) == "moved"}
        return any(stands(p) == "kept" and base.values[p].shape in given for p in step.results)

    def settling(place: int, seen: set[int]) -> Step | None:
        step = base.makers.get(place)
        if step is None or place in seen or stands(place) != "kept":
            return None
        seen.add(place)
        if settles(step):
            return step
        return next((s for p in step.operands if (s := settling(p, seen)) is not None), None)

    for _ in range(_BACK):
        if meeting is None:
            return None
        if any(stands(place) == "moved" for place in meeting.operands):
            found = (settling(place, set()) for place in meeting.operands)
            first = next((step for step in found if step is not None), None)
            return None if first is None else (first, meeting)
        torn = (
            p for p in meeting.operands if p in base.makers and stands(p) not in ("kept", "moved")
        )
        meeting = next((base.makers[place] for place in torn), None)
    return None


def sorted_beside(base: Trace, permuted: Trace, order: Tensor) -> tuple[Step, Step] | None:
    """Find where samples in their own order first meet what was put in one order, whatever theirs.

    Args:
        base, permuted, order: As for :func:`reordering`.

    Returns:
        What gave the one order, and what brings its result together with samples as they came: its own result is
        the same, or moved like the samples, no more.
    """
    stands, tried = Both(base, permuted, order).stands, 0
    for step in base.steps:
        given = {stands(place) for place in step.operands}
        torn = any(stands(place) in ("", "other") for place in step.results)
        if tried == _BACK or given != {"kept", "moved"} or not torn:
            continue
        tried += 1
        found = settled(base, permuted, step.op, order)
        if found is not None and found[1] is step:
            return found
    return None


def joined(base: Trace, permuted: Trace, until: Op, order: Tensor) -> tuple[Step, int, int] | None:
    """Find what put entries beside others, at another place than what ``until`` combines them with.

    Args:
        base, permuted, until, order: As for :func:`reordering`.

    Returns:
        The operation, behind how many others it puts them, and behind how many they are in what they meet.
    """
    last, both = _step_of(base, until), Both(base, permuted)

    def behind(place: int) -> int | None:
        one, two = both.pair(place)
        return None if one is None or two is None else _behind(one, two, order)

    at = {place: behind(place) for place in (() if last is None else last.operands)}
    found = {place: many for place, many in at.items() if many is not None}
    if len(set(found.values())) != 2:
        return None
    place, many = max(found.items(), key=lambda item: item[1])
    step = origin(base, place, lambda one: behind(one) == many)[0]
    return None if step is None else (step, many, min(found.values()))


def paired(base: Trace, permuted: Trace, until: Op) -> bool:
    """Say whether ``until`` combines two values that hold the same numbers in both runs, each in another order."""
    last, both = _step_of(base, until), Both(base, permuted)
    operands = dict.fromkeys(() if last is None else last.operands)
    return sum(_rearranged(*both.pair(place)) for place in operands) > 1


def first_merging(base: Trace, other: Trace) -> Step | None:
    """Find the first operation that reads different integers in two runs and gives the same floating-point values."""
    both = Both(base, other)

    def same(place: int) -> bool:
        one, two = both.pair(place)
        return one is None or two is None or torch.equal(one, two)

    for step in base.steps:
        if all(map(same, step.operands)) or not step.results or not all(map(same, step.results)):
            continue
        if all(base.values[place].dtype.is_floating_point for place in step.results):
            return step
    return None


def by_place(
    base: Trace, permuted: Trace, step: Step, order: Tensor | None
) -> tuple[Step | None, str]:
    """Return what made the mask or the integers that a step reads, by the places of the samples, and say which.

    Args:
        base, permuted: As for :func:`reordering`.
        step: A step of the reference run whose result depends on the places.
        order: As for :func:`reordering`; None where it is not known, and masks cannot be told.
    """
    both = Both(base, permuted)

    def stays(place: int) -> bool:
        one, two = both.pair(place)
        if (
            one is None
            or two is None
            or order is None
            or one.dtype != torch.bool
            or one.shape != two.shape
        ):
            return False
        return len(order) in one.shape and not _moves(one, two, order, 0.0)

    def chosen(place: int) -> bool:
        one, two = both.pair(place)
        if one is None or two is None or one.is_floating_point() or one.is_complex():
            return False
        return one.shape != two.shape or not torch.equal(
            *(t.flatten().sort().values for t in (one, two))
        )

    def kept(place: int) -> bool:
        one, two = both.pair(place)
        if one is None or two is None:
            return False
        return not one.is_floating_point() or one.equal(two)

    for holds, what in (
        (stays, "a mask by the places of the samples"),
        (chosen, "other integers of the same ones"),
    ):
        read = next((place for place in step.operands if holds(place)), None)
        if read is not None and (holds is stays or all(map(kept, step.operands))):
            return origin(base, read, holds)[0], what
    return None, ""


def made_index(base: Trace, step: Step) -> Op | None:
    """Return the first operation on the way to the integers by which a step takes elements; None without such."""
    if step.op.name.rpartition(".")[2] not in _TAKING:
        return None

    def integers(places: Iterable[int]) -> int | None:
        whole = (p for p in places if not base.values[p].dtype.is_floating_point)
        return next((p for p in whole if base.values[p].dtype != torch.bool), None)

    place, made = integers(step.operands), None
    while place is not None and (before := base.makers.get(place)) is not None:
        made, place = before.op, integers(p for p in before.operands if p != place)
    return made


def _rearranged(one: Tensor | None, two: Tensor | None) -> bool:
    if one is None or two is None or one.shape != two.shape or torch.equal(one, two):
        return False
    first, second = (t.flatten().double().sort().values for t in (one, two))
    return torch.allclose(first, second, rtol=0.0, atol=_CLOSE * float(first.abs().max()))


def _behind(one: Tensor, two: Tensor, order: Tensor) -> int | None:
    """Return behind how many others the entries stand, moved as given, in a longer value; None where they do not."""
    if one.shape != two.shape or torch.equal(one, two):
        return None
    allowed = _CLOSE * float(one.abs().max())
    for dim, size in enumerate(one.shape):
        for many in range(size - len(order) + 1 if size > len(order) else 0):
            whole = torch.arange(size, device=one.device)
            whole[many : many + len(order)] = many + order.to(one.device)
            if torch.allclose(one.index_select(dim, whole), two, rtol=0.0, atol=allowed):
                return many
    return None


def _stands(one: Tensor | None, two: Tensor | None, order: Tensor) -> str:
    """Say how the entries of a value stand in the second run: ``kept``, ``moved`` as given, ``other``, or nothing."""
    if one is None or two is None or one.shape != two.shape or one.is_complex():
        return ""
    wide = one.is_floating_point() and one.numel()
    allowed = _CLOSE * float(one.abs().max()) if wide else 0.0
    if torch.allclose(one, two, rtol=0.0, atol=allowed):
        return "kept"
    if _moves(one, two, order, allowed):
        return "moved"
    dims = (dim for dim, size in enumerate(one.shape) if size == len(order))
    return "other" if any(rows_moved(one, two, dim) is not None for dim in dims) else ""


def _moves(one: Tensor, two: Tensor, order: Tensor, allowed: float) -> bool:
    turned = (
        one.index_select(dim, order.to(one.device))
        for dim, size in enumerate(one.shape)
        if size == len(order)
    )
    return any(torch.allclose(other, two, rtol=0.0, atol=allowed) for other in turned)
