"""By how much the target of one sample moves each sample's gradient, and where the outputs of a target stand."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

import torch

from ...objects import trees
from ...subject.errors import SubjectError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from ...batches import Batch
    from .slopes import LossOfOutput, Slopes

SAMPLES: Final = 16
"""How many samples of a batch are tried one by one."""
ROUNDING: Final = 1e-5
"""Relative change of a float32 gradient that the order of a sum explains, with a margin."""
_PROBES: Final = 8
_GOLDEN: Final = (5**0.5 - 1) / 2
_APART: Final = 5
"""How many times the median change of a gradient a target's own position changes at least."""

Pulls = dict[int, torch.Tensor | None]
"""By sample: how much each sample's gradient changed with its target, ``[B]``; None where nothing changed.
Another sample's gradient that is scaled and keeps its direction counts as unchanged: weights and normalisers do that."""


def pulls_of(
    loss: LossOfOutput, base: Slopes, target: torch.Tensor, axis: int, out: int, size: int
) -> Pulls:
    """Change the target of one sample at a time.

    Args:
        loss: The loss.
        base: Its slopes with the targets as they are.
        target: One tensor of the targets.
        axis: Where the samples stand in it.
        out: Where they stand in what the slopes are by.
        size: How many samples there are.
    """
    if base.plain is not None and axis == out == 0:
        samples = base.plain.counts(target)[:SAMPLES].nonzero().flatten().tolist()
        return {sample: torch.eye(size)[sample] for sample in samples}
    found: Pulls = {}
    still = []
    for sample in spread(size):
        tried = False
        for other in others_of(target, axis, sample):
            try:
                now = loss.slopes(loss.with_targets(target, other))
            except SubjectError:
                continue
            if now is None or not now.finite:
                continue
            tried = True
            moved = moved_by(base, now, sample, out, size)
            if bool((moved > 0).any()):
                found[sample] = moved
                break
            if now.value != base.value:
                break  # it is read, and has no gradient: another check's business
        else:
            if tried:
                still.append(sample)
    read = list(found)
    return found | {s: None for s in still if not loss.heeds(base, s, out, read)}


def spread(size: int) -> list[int]:
    """Return which samples of so many are tried: all of them, or some at both ends and between."""
    if size <= SAMPLES:
        return list(range(size))
    third = SAMPLES // 3
    between = [third + (size - 2 * third) * n // (third + 1) for n in range(1, third + 1)]
    return sorted({*range(third), *between, *range(size - third, size)})


def others_of(target: torch.Tensor, axis: int, sample: int) -> Iterator[torch.Tensor]:
    """Yield the targets with other values for one sample; nothing where all of its values are to be ignored."""
    row = target.select(axis, sample)
    candidates: list[torch.Tensor] = []
    if target.dtype == torch.bool:
        candidates = [~row]
    elif not target.is_floating_point():
        if bool((row >= 0).any()):
            candidates = [other_classes(row, target, k) for k in (1, 2)]
    elif bool(((target == 0) | (target == 1)).all()):
        candidates = [1 - row]
    else:
        spread = float(target.std()) if target.numel() > 1 else 0.0
        step = spread if spread > 0 else 1.0
        noise = torch.randn(row.shape, generator=torch.Generator().manual_seed(0))
        # a loss may take out what all values share, such as their mean
        candidates = [row + step * noise.to(row.device, row.dtype), row + step, row - step]
    for values in candidates:
        if not torch.equal(values, row):
            made = target.clone()
            made.select(axis, sample).copy_(values)
            yield made


def other_classes(labels: torch.Tensor, target: torch.Tensor, by: int) -> torch.Tensor:
    """Return other classes in place of some labels; what is negative stays.

    On a GPU only classes that occur: an index out of range would cost the process its context.

    Args:
        labels: int, some or all of a target.
        target: All of it, on the same device.
        by: How many classes further on.
    """
    if labels.device.type == "cpu":
        others = (labels + by) % max(int(target.max()) + 1, 2)
    else:
        known = torch.unique(target[target >= 0])
        places = torch.searchsorted(known, labels.clamp(min=int(known[0])))
        others = known[(places + by) % len(known)]
    return torch.where(labels >= 0, others, labels)


def moved_by(
    base: Slopes, now: Slopes, sample: int | tuple[int, ...], axis: int, size: int
) -> torch.Tensor:
    """Return by how much the gradient of each sample's outputs changed, ``[B]``; 0 where rounding explains it.

    Args:
        base: The slopes before.
        now: Those after.
        sample: Which samples were changed; the others' gradients may come out multiplied by a number.
        axis: Where the samples stand in what the slopes are by.
        size: How many samples there are.
    """
    changed = (sample,) if isinstance(sample, int) else sample
    total = torch.zeros(size, dtype=torch.float64)
    for path, slope in base.by_output.items():
        other = now.by_output.get(path, torch.zeros_like(slope))
        a, b = (_by_sample(t, axis) for t in (slope, other))
        largest = max(float(a.abs().max()), float(b.abs().max())) if a.numel() else 0.0
        other_ones = (a != b).any(1).nonzero().flatten()
        if not len(other_ones):
            continue
        rest = torch.tensor([n not in changed for n in range(size)], device=a.device)[other_ones]
        a, b = (t[other_ones].double() for t in (a, b))
        factor = (a * b).sum(1, keepdim=True) / (a * a).sum(1, keepdim=True).clamp(min=1e-300)
        change = torch.where(rest, (b - factor * a).abs().amax(1), (b - a).abs().amax(1))
        change[change <= ROUNDING * largest] = 0.0
        others = other_ones.cpu()
        total[others] = torch.maximum(total[others], change.cpu())
    return total


def _by_sample(slope: torch.Tensor, axis: int) -> torch.Tensor:
    slope = trees.dense(slope)
    return slope.movedim(axis, 0).flatten(1) if slope.dim() > 1 else slope[:, None]


def interchangeable(loss: LossOfOutput, base: Slopes, axes: dict[str, int]) -> bool:
    """Say whether the targets of the samples in other orders give the same loss and the same slopes.

    Args:
        loss: The loss.
        base: Its slopes with the targets as they are.
        axes: Of the targets that change places together, by path: where the samples stand.
    """
    targets = {path: target for path, target in loss.targets().items() if path in axes}
    for others in (
        {id(t): t.roll(1, axes[path]) for path, t in targets.items()},
        {id(t): t.flip(axes[path]) for path, t in targets.items()},
    ):
        if all(torch.equal(t, others[id(t)]) for t in targets.values()):
            return False
        try:
            now = loss.slopes(_exchanged(loss.batch, others))
        except SubjectError:
            return False
        if now is None or abs(now.value - base.value) > ROUNDING * max(1.0, abs(base.value)):
            return False
        for path, slope in base.by_output.items():
            near = ROUNDING * float(slope.abs().max())
            other = now.by_output.get(path)
            if other is None or not torch.allclose(slope, other, rtol=1e-4, atol=near):
                return False
    return True


def is_unpaired(loss: LossOfOutput, base: Slopes, axes: dict[str, int]) -> bool:
    """Say whether targets may change places, also where outputs are spread: an absolute error is linear beside them.

    Not where no target that differs among the samples matters: this batch may have no label that counts.
    """
    if not interchangeable(loss, base, axes) or not _any_matters(loss, base):
        return False
    spread = loss.spread()
    try:
        wide = spread.slopes()
    except SubjectError:
        return False
    return wide is not None and wide.finite and interchangeable(spread, wide, axes)


def _any_matters(loss: LossOfOutput, base: Slopes) -> bool:
    """Say whether the loss is another where a target whose values differ has one of them everywhere."""
    for target in loss.targets().values():
        if target.is_complex() or not trees.computable(target):
            return True
        if not target.numel():
            continue
        low, high = target.min(), target.max()
        for value in (low, high) if bool(low != high) else ():
            try:
                found = loss.slopes(
                    loss.with_targets(target, torch.full_like(target, value.item()))
                )
            except SubjectError:
                return True  # it is read
            if found is None or found.value != base.value:
                return True
    return False


def _exchanged(batch: Batch, others: dict[int, torch.Tensor]) -> Batch:
    return batch.map(lambda _, leaf: others.get(id(leaf), leaf))


Place = tuple[int, ...]


def order_of(
    reached: dict[Place, set[Place]], target: torch.Tensor, batch_dim: int | None
) -> str | None:
    """Return in which order one distance leads from every changed target to an output; None where none does.

    It may be along one axis other than the batch's, as that of a next-token loss; empty is the order of the
    targets, also where time comes first in one of the two. Else an axis is read in reverse, or two axes of one
    size change places.
    """
    shape, axes = target.shape, range(target.dim())
    orders = [
        order
        for order in itertools.permutations(axes)
        if all(shape[a] == shape[b] for a, b in zip(axes, order, strict=True))
    ]
    found: list[str] = []
    for order, signs in itertools.product(orders, itertools.product((1, -1), repeat=len(shape))):
        backward = [axis for axis, sign in zip(axes, signs, strict=True) if sign < 0]
        common: set[Place] | None = None
        for place, where in reached.items():
            moved = [sign * place[axis] for sign, axis in zip(signs, order, strict=True)]
            distances = {tuple(w - p for w, p in zip(item, moved, strict=True)) for item in where}
            common = distances if common is None else common & distances
        for distance in common or ():
            along = [axis for axis, step in zip(axes, distance, strict=True) if step]
            if len({*along, *backward}) <= 1 and batch_dim not in (*along, *backward):
                changed = [axis for axis in axes if order[axis] != axis]
                if torch.equal(target.permute(order).flip(backward), target):
                    return ""  # the same either way, as a matrix of distances
                if backward:
                    found.append(f"with axis {backward[0]} in reverse")
                elif changed and batch_dim not in changed:
                    found.append(f"with axes {changed} exchanged")
                else:
                    return ""
    return found[0] if found else None


def summed(reached: dict[Place, set[Place]]) -> bool:
    """Say whether targets reach places next to each other on one side along one axis: sums over time, as in returns."""

    def steps(place: Place, where: set[Place], axis: int, side: int) -> list[int]:
        own = place[:axis] + place[axis + 1 :]
        if {item[:axis] + item[axis + 1 :] for item in where} != {own}:
            return []
        found = sorted(side * (item[axis] - place[axis]) for item in where)
        return found if found[0] >= 0 and found == [*range(found[0], found[-1] + 1)] else []

    several = sum(len(where) > 1 for where in reached.values())
    for axis, side in itertools.product(range(len(next(iter(reached)))), (1, -1)):
        runs = [steps(place, where, axis, side) for place, where in reached.items() if where]
        if all(runs) and 2 * sum(run[0] in (0, 1) for run in runs) >= len(runs):
            return 2 * several > len(reached)
    return False


def along_lines(reached: dict[Place, set[Place]], shape: torch.Size, batch_dim: int | None) -> bool:
    """Say whether every changed target moves all positions of its own sample along some axis, and no other sample's."""
    if batch_dim is None or batch_dim >= len(shape) or len(reached) < 2:
        return False
    axes = [axis for axis, size in enumerate(shape) if axis != batch_dim and size > 2]
    return all(
        {item[batch_dim] for item in where} == {place[batch_dim]}
        for place, where in reached.items()
    ) and any(
        all({item[axis] for item in where} == set(range(shape[axis])) for where in reached.values())
        for axis in axes
    )


def reached_by(
    base: torch.Tensor,
    axes: list[int],
    target: torch.Tensor,
    path: str,
    leaf: torch.Tensor,
    batch: Batch,
    slopes: Callable[[Any], dict[str, torch.Tensor] | None],
) -> list[dict[Place, set[Place]]]:
    """Change single targets; return for each the positions of the output whose gradient changed, by class axis."""
    found: list[dict[Place, set[Place]]] = [{} for _ in axes]
    for number in range(_PROBES):
        # spread over the targets, and at uneven distances: no period of the shape is met by all of
        # them
        flat = int(target.numel() * ((number + 0.5) * _GOLDEN % 1))
        place = trees.place_of(flat, target.shape)
        other = _other(target, place, leaf.shape[axes[0]] if axes[0] >= 0 else 0)
        if other is None:
            continue
        now = slopes(trees.substitute(batch.targets, {id(target): other}))
        if now is None or path not in now:
            continue
        change = (now[path] - base).abs()
        if not bool(torch.isfinite(change).all()) or not bool((change > 0).any()):
            continue
        for axis, reached in zip(axes, found, strict=True):
            moved = change.amax(axis) if axis >= 0 else change
            where = (moved > 1e-6 * moved.max()).nonzero()
            # sums over all positions change every gradient a little: those that stand out count
            if axis >= 0 and 2 * len(where) > moved.numel():
                most = (moved > _APART * moved.median()).nonzero()
                where = most if 0 < 4 * len(most) < len(where) else where
            reached[place] = {tuple(item) for item in where.tolist()}
    return found


def _other(target: torch.Tensor, place: Place, classes: int) -> torch.Tensor | None:
    """Return the targets with another value at one place, or None where that one does not count."""
    changed = target.clone()
    value = target[place]
    if target.dtype == torch.bool:
        changed[place] = ~value
    elif not target.is_floating_point():
        if int(value) < 0 or (classes and int(value) >= classes):
            return None
        changed[place] = (int(value) + 1) % (classes or 2)
    elif bool(((target == 0) | (target == 1)).all()):
        changed[place] = 1 - value
    else:
        spread = float(target.std()) if target.numel() > 1 else 0.0
        changed[place] = value + (spread if spread > 0 else 1.0)
    return None if torch.equal(changed, target) else changed
