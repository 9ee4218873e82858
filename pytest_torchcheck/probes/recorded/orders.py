"""In which order the entries of a set stand in each value of a run, beside a run with them in another order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from ..positions.spread import origin
from .operations import aligned

if TYPE_CHECKING:
    from torch import Tensor

    from .operations import Step, Trace
    from .watch import Op

_CLOSE: Final = 1e-5
_MOST: Final = 2**22
"""Distances between entries that are computed for one value, at most."""


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
    last, others = _until(base, permuted, until)
    known: dict[int, str] = {}

    def stands(place: int) -> str:
        if place not in known:
            values = base.values[place].values, permuted.values[others.get(place, place)].values
            known[place] = _stands(*values, order)
        return known[place]

    places = () if last is None else last.operands
    odd = next((place for place in places if stands(place) == "other"), None)
    if odd is None or not any(stands(place) == "moved" for place in places):
        return None
    return origin(base, odd, lambda place: stands(place) == "other")[0]


def joined(base: Trace, permuted: Trace, until: Op, order: Tensor) -> tuple[Step, int, int] | None:
    """Find what put entries beside others, at another place than what ``until`` combines them with.

    Args:
        base, permuted, until, order: As for :func:`reordering`.

    Returns:
        The operation, behind how many others it puts them, and behind how many they are in what they meet.
    """
    last, others = _until(base, permuted, until)

    def behind(place: int) -> int | None:
        one, two = base.values[place].values, permuted.values[others.get(place, place)].values
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
    last, others = _until(base, permuted, until)
    operands = dict.fromkeys(() if last is None else last.operands)
    values = [(base.values[p].values, permuted.values[others.get(p, p)].values) for p in operands]
    return sum(_rearranged(one, two) for one, two in values) > 1


def _rearranged(one: Tensor | None, two: Tensor | None) -> bool:
    if one is None or two is None or one.shape != two.shape or torch.equal(one, two):
        return False
    first, second = (t.flatten().double().sort().values for t in (one, two))
    return torch.allclose(first, second, rtol=0.0, atol=_CLOSE * float(first.abs().max()))


def _until(base: Trace, permuted: Trace, until: Op) -> tuple[Step | None, dict[int, int]]:
    """Return the step of an operation, and the place in the second run of each value of the first."""
    others: dict[int, int] = {}
    last: Step | None = None
    for a, b in aligned(base, permuted):
        if a is not None and b is not None:
            others.update(zip((*a.operands, *a.results), (*b.operands, *b.results), strict=True))
            last = a if a.op is until else last
    return last, others


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
    if one is None or two is None or one.shape != two.shape or not one.is_floating_point():
        return ""
    allowed = _CLOSE * float(one.abs().max()) if one.numel() else 0.0
    if torch.allclose(one, two, rtol=0.0, atol=allowed):
        return "kept"
    dims = [dim for dim, size in enumerate(one.shape) if size == len(order)]
    for dim in dims:
        if torch.allclose(one.index_select(dim, order.to(one.device)), two, rtol=0.0, atol=allowed):
            return "moved"
    return "other" if any(rows_moved(one, two, dim) is not None for dim in dims) else ""
