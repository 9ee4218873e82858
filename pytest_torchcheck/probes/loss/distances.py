"""Where the outputs stand that a target reaches, as seen from the target's own place."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

Place = tuple[int, ...]


def one_distance(
    reached: dict[Place, set[Place]], shape: torch.Size, batch_dim: int | None
) -> bool:
    """Say whether one distance leads from every changed target to an output.

    It may be along one axis other than the batch's, as that of a next-token loss; an axis may be
    read backward, and axes of one size may be exchanged: time may come first in one of the two.
    """
    axes = range(len(shape))
    orders = [
        order
        for order in itertools.permutations(axes)
        if all(shape[a] == shape[b] for a, b in zip(axes, order, strict=True))
    ]
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
                return True
    return False


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
