"""How much each element of the output counts in a loss, when the batch is repeated and when a mask counts more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from ...lean import dataclass
from ...objects import trees
from ...subject.errors import SubjectError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .slopes import LossOfOutput, Slopes

_COPIES: Final = (2, 3, 5)
"""A loss that is no sum of averaged and summed terms does not lie on one line at all of these."""
_PART: Final = 1e-3
"""A share of the gradient that is no rounding."""
_OFF_LINE: Final = 1e-4
"""How far from a line rounding can take a float32 gradient, as a share of it."""
_ELEMENTS: Final = 3
"""How many elements are counted in addition, one at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reductions:
    """How the terms of a loss are reduced over the batch.

    Attributes:
        averaged: Outputs of which a term is averaged: the samples keep their share together.
        summed: Outputs of which a term is summed: each sample keeps its weight in any batch.
        divided: Outputs of which a term falls with the number of samples: an average that is divided by it again.
    """

    averaged: tuple[str, ...]
    summed: tuple[str, ...]
    divided: tuple[str, ...] = ()


def reductions(loss: LossOfOutput, axes: dict[str, int], size: int) -> Reductions | None:
    """Repeat the samples, and see which gradients keep their sum over the copies, and which keep their size.

    Args:
        loss: Of some samples.
        axes: Where the samples stand in each output, by path.
        size: How many samples there are.

    Returns:
        None where the gradients follow neither rule nor a mixture of both: the loss relates samples
        to each other.

    Raises:
        SubjectError: The loss refuses the repeated batch.
    """
    base = loss.slopes()
    if base is None or not base.finite:
        return None
    repeated = {}
    for copies in _COPIES:
        many = loss.cut(torch.arange(size).repeat(copies), axes).slopes()
        if many is None or not many.finite:
            return None
        repeated[copies] = many.by_output
    averaged, summed, divided = [], [], []
    for path, slope in base.by_output.items():
        one = slope.double()
        most = float(one.abs().max()) if one.numel() else 0.0
        if most == 0.0:
            continue
        try:
            sums = {n: _over_copies(found[path], axes[path], n) for n, found in repeated.items()}
        except KeyError:
            return None
        grows, falls = _parts(one, sums)
        growth = float(grows.abs().max())
        rounding = _OFF_LINE * max(most, growth)
        if any(
            _apart(sums[n], one + (n - 1) * grows + (1 / n - 1) * falls) > rounding for n in _COPIES
        ):
            return None
        if float(falls.abs().max()) > _PART * most:
            divided.append(path)
        if growth > _PART * most:
            summed.append(path)
        if _apart(one, grows + falls) > _PART * most:
            averaged.append(path)
    if not averaged and not summed and not divided:
        return None
    return Reductions(averaged=tuple(averaged), summed=tuple(summed), divided=tuple(divided))


def _parts(one: torch.Tensor, sums: dict[int, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the parts of a gradient that grow with the number of copies, and that fall with it.

    Args:
        one: The gradient of one copy, ``kept + grows + falls``.
        sums: That of all copies together, by their number ``n``: ``kept + n * grows + falls / n``.
    """
    few, many = _COPIES[0], _COPIES[-1]
    first, last = (sums[few] - one) / (few - 1), (sums[many] - one) / (many - 1)
    falls = (last - first) / (1 / few - 1 / many)
    return first + falls / few, falls


def is_separate(loss: LossOfOutput, base: Slopes, axes: dict[str, int]) -> bool:
    """Say whether an extreme output of the first sample leaves the gradients of the others as they were.

    Raises:
        SubjectError: The loss refuses it.
    """
    now = loss.stretched(0, axes).slopes()
    return now is not None and all(
        path in now.by_output
        and torch.allclose(
            _others(now.by_output[path], axes[path]), _others(slope, axes[path]), rtol=1e-4
        )
        for path, slope in base.by_output.items()
    )


def _others(slope: torch.Tensor, axis: int) -> torch.Tensor:
    return slope.narrow(axis, 1, slope.shape[axis] - 1)


def _over_copies(slope: torch.Tensor, axis: int, copies: int) -> torch.Tensor:
    return torch.stack(slope.double().chunk(copies, dim=axis)).sum(0)


def _apart(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).abs().max())


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowding:
    """A mask in which one element more adds to the weight of the others.

    Attributes:
        path: The mask's path in the batch.
        element: Index of the element that was counted in addition.
        sample: The sample whose other elements got a larger gradient.
        counted: How many elements of that sample counted before.
        factor: By how much their gradient grew.
        others: The loss with the changed mask.
    """

    path: str
    element: tuple[int, ...]
    sample: int
    counted: int
    factor: float
    others: LossOfOutput


def crowding(
    loss: LossOfOutput, base: Slopes, path: str, target: torch.Tensor, axis: int
) -> tuple[int, Crowding | None]:
    """Count one element more, and see whether those that counted before count for more than they did.

    The weight of an element in a mean falls with every other one that counts, and stays in a sum.

    Args:
        loss: Of the whole batch.
        base: Its slopes.
        path: Of the mask, in the batch.
        target: The mask: of zeros and ones, or bool.
        axis: Where its samples stand.

    Returns:
        How many elements were tried, and the first that adds to the weight of others, if none takes from it.
    """
    tried, found = 0, None
    for output, slope in base.by_output.items():
        counts = _counted(slope, target)
        if counts is None:
            continue
        for element in _uncounted(counts, axis):
            changed = target.clone()
            changed[element] = (
                ~target[element] if target.dtype == torch.bool else 1 - target[element]
            )
            try:
                other = loss.of(loss.with_targets(target, changed))
                now = other.slopes()
            except SubjectError:
                continue
            if now is None or not now.finite or output not in now.by_output:
                continue
            more = now.by_output[output]
            if not bool(more[element].any()):
                continue
            factors = _factors(slope, more, counts, axis)
            if factors is None:
                return 0, None  # no weights: the elements compete, as in a softmax over them
            tried += 1
            sample = int(factors.argmax())
            factor = float(factors[sample])
            if factor < 1 - _PART:
                return tried, None
            if factor <= 1 + _PART:
                continue  # a sum, or a divisor that is held above 0
            if _compete(other, output, more, element):
                return 0, None  # it says which samples are compared, not how much one weighs
            among = int(counts.movedim(axis, 0)[sample].sum())
            found = found or Crowding(
                path=path,
                element=element,
                sample=sample,
                counted=among,
                factor=factor,
                others=other,
            )
    return tried, found


def _compete(loss: LossOfOutput, path: str, slope: torch.Tensor, element: tuple[int, ...]) -> bool:
    """Say whether an extreme output of one element, to one side or the other, changes the gradient of others."""
    values = trees.dense(loss.outputs[path]).detach()
    for sign in (1, -1):
        extreme, kept = values.clone(), slope.clone()
        extreme[element] = sign * 100 * (1 + values.abs().amax())
        try:
            now = loss.at(path, extreme).slopes()
        except SubjectError:
            continue
        found = None if now is None else now.by_output.get(path)
        if found is not None:
            kept[element] = found[element]
            if _apart(found, kept) > _PART * float(slope.abs().max()):
                return True
    return False


def _counted(slope: torch.Tensor, target: torch.Tensor) -> torch.Tensor | None:
    """Return which elements have a gradient, where a mask of zeros and ones says exactly that; bool."""
    if slope.shape[: target.dim()] != target.shape or not target.dim():
        return None
    if not bool(((target == 0) | (target == 1)).all()):
        return None
    has = (
        trees.dense(slope).flatten(target.dim()).ne(0).any(-1)
        if slope.dim() > target.dim()
        else slope.ne(0)
    )
    on = target == 1
    fits = torch.equal(has, on) or torch.equal(has, ~on)
    return has if fits and bool(has.any()) and not bool(has.all()) else None


def _uncounted(counts: torch.Tensor, axis: int) -> Iterator[tuple[int, ...]]:
    """Yield elements that do not count, each of another sample of which some do."""
    rows = counts.movedim(axis, 0).reshape(counts.shape[axis], -1).any(1)
    partly = rows if counts.dim() > 1 else torch.ones_like(rows)
    shape = [-1 if dim == axis else 1 for dim in range(counts.dim())]
    places = (~counts & partly.reshape(shape)).nonzero().tolist()
    seen: set[int] = set()
    for place in places:
        if place[axis] not in seen and len(seen) < _ELEMENTS:
            seen.add(place[axis])
            yield tuple(place)


def _factors(
    slope: torch.Tensor, more: torch.Tensor, counts: torch.Tensor, axis: int
) -> torch.Tensor | None:
    """Return by what the gradient of the elements that counted was multiplied, ``[B]``; None where it turned."""
    wide = counts.reshape(*counts.shape, *[1] * (slope.dim() - counts.dim())).expand_as(slope)
    a, b = (
        (t.double() * wide).movedim(axis, 0).reshape(counts.shape[axis], -1) for t in (slope, more)
    )
    size = (a * a).sum(1)
    factors = (a * b).sum(1) / size.clamp(min=1e-300)
    if _apart(b, factors[:, None] * a) > _OFF_LINE * float(a.abs().max()):
        return None
    return torch.where(size > 0, factors, 1.0)
