"""Whether another dimension than the declared one behaves as the batch does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..objects import trees
from ..subject.errors import SubjectError
from .facts import outputs

if TYPE_CHECKING:
    from ..batches import Batch
    from ..subject import Subject

_CLOSE = 1e-4


def other_batch_dim(subject: Subject) -> int | None:
    """Return 1 where samples seem to lie along dimension 1 of a real batch, not along dimension 0; else None.

    That is so where every output keeps its entries when those of the inputs are exchanged along
    dimension 1, and entry 0 stays when all others are replaced. It is not asked where symbols are
    declared, nor where a tensor of one dimension, such as labels, has the size of dimension 0
    alone.
    """
    source = subject.source
    if not source.has_real or subject.contract.batch_dim != 0:
        return None
    batch = subject.batch()
    leaves = [t for _, t in batch.leaves() if isinstance(t, torch.Tensor) and t.dim()]
    wide = [t for _, t in batch.input_leaves() if isinstance(t, torch.Tensor) and t.dim() > 1]
    if not wide or len({t.shape[1] for t in wide}) > 1:
        return None
    first, size = wide[0].shape[0], wide[0].shape[1]
    flat = [t for t in leaves if t.dim() == 1]
    if size < 2 or any(t.shape[0] == first != size for t in flat):
        return None
    try:
        return 1 if _behaves(subject, batch, size) else None
    except SubjectError:
        return None


def _behaves(subject: Subject, batch: Batch, size: int) -> bool:
    order = torch.arange(size).roll(1)
    plain = outputs(subject)
    turned = outputs(subject, _taken(batch, order))
    kept = outputs(subject, _taken(batch, torch.zeros(size, dtype=torch.int64)))
    axes = {path: _axis(t, turned.get(path), order) for path, t in plain.items()}
    if not axes or any(axis is None for axis in axes.values()):
        return False
    return all(
        _close(plain[path].select(axis, 0), kept[path].select(axis, 0))
        for path, axis in axes.items()
        if axis is not None
    )


def _taken(batch: Batch, index: torch.Tensor) -> Batch:
    """Take entries along dimension 1, and along the only one of what has no other."""

    def take(_path: str, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or not leaf.dim():
            return leaf
        dim = min(1, leaf.dim() - 1)
        return (
            leaf.detach().index_select(dim, index.to(leaf.device))
            if leaf.shape[dim] == len(index)
            else leaf
        )

    return batch.map(take, targets=False)


def _axis(before: torch.Tensor, after: torch.Tensor | None, order: torch.Tensor) -> int | None:
    """Return the axis along which an output was exchanged as its inputs were."""
    if after is None or after.shape != before.shape or trees.same(before, after):
        return None
    return next(
        (
            axis
            for axis in range(before.dim())
            if before.shape[axis] == len(order)
            and _close(before.index_select(axis, order.to(before.device)), after)
        ),
        None,
    )


def _close(a: torch.Tensor, b: torch.Tensor) -> bool:
    return trees.apart(b, a) <= _CLOSE
