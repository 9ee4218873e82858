"""Whether a loss over some of its samples chooses these by what they hold, or by their places."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ...objects import trees
from ...subject.errors import SubjectError

if TYPE_CHECKING:
    from ..loss.slopes import LossOfOutput, Slopes


def by_place(loss: LossOfOutput, base: Slopes, axis: int | None) -> bool:
    """Say whether samples in another order leave the rows without a gradient where they were.

    Args:
        loss: The loss.
        base: Its slopes.
        axis: Where the samples stand in every output.
    """
    if axis is None:
        return False
    size, still = loss.samples(axis), unpulled(base, axis)
    if not still or len(still) == size:
        return False
    try:
        turned = [loss.cut(torch.arange(size).roll(by), axis).slopes() for by in (1, 2)]
    except SubjectError:
        return False
    return all(one is not None and unpulled(one, axis) == still for one in turned)


def is_remainder(loss: LossOfOutput, base: Slopes, axis: int) -> bool:
    """Say whether the samples that have no gradient are the last ones, and the others alone leave none out.

    Parts of one size, such as pairs, leave a remainder behind, which is smaller than what is read.
    """
    size, still = loss.samples(axis), unpulled(base, axis)
    read = size - len(still)
    if still != list(range(read, size)) or len(still) >= read:
        return False
    try:
        fewer = loss.cut(torch.arange(read), axis).slopes()
    except SubjectError:
        return False
    return fewer is not None and not unpulled(fewer, axis)


def unpulled(slopes: Slopes, axis: int) -> list[int]:
    """Return the samples at whose outputs every gradient is zero."""
    dense = [trees.dense(t) for t in slopes.by_output.values()]
    rows = [
        t.movedim(axis, 0).reshape(t.shape[axis], -1) for t in dense if t.dim() > axis and t.numel()
    ]
    rows = [row for row in rows if len(row) == len(rows[0])]
    if not rows:
        return []
    pulled = torch.stack([(row != 0).any(1).cpu() for row in rows]).any(0)
    return [int(n) for n in (~pulled).nonzero().flatten()]


def chosen_by_loss(
    loss: LossOfOutput, read: list[int], unread: list[int], axis: int | None
) -> bool:
    """Say whether the samples that are read have the highest losses, or are most of them and have the lowest.

    Each loss is that of a batch of the sample's copies. The hardest samples may be mined, and the
    easier ones kept where labels are noisy (Han et al., Co-teaching, 2018).
    """
    if axis is None:
        return False
    every = (*read, *unread)
    try:
        own = {s: float(loss.cut(torch.full((len(every),), s), axis).run()[0]) for s in every}
    except SubjectError:
        return False
    kept, left = [own[s] for s in read], [own[s] for s in unread]
    most = len(kept) >= len(left)
    return min(kept) >= max(left) or (most and max(kept) <= min(left))
