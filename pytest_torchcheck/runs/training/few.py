"""How many samples do, where what is looked for does not depend on how many there are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...probes.loss.arguments import targets_of
from ...probes.loss.own import labels_of

if TYPE_CHECKING:
    from ...batches import Batch
    from ...subject import Subject

_THREE = 3
_MANY = 16  # targets of one sample


def how_few(subject: Subject, batch: Batch, size: int) -> int:
    """Return how many samples train a model as all of them do.

    Three rather than two where the batch allows it: of two values a statistic over the batch keeps
    no more than which one is larger. Two where each has many targets. All runs take as many: a
    convolution is prepared anew for each size.

    Args:
        subject: Whose model.
        batch: A batch.
        size: How many samples it has.
    """
    return 2 if many_targets(subject, batch) else max(2, min(_THREE, size // 2))


def many_targets(subject: Subject, batch: Batch) -> bool:
    """Say whether each sample of a batch has many targets."""
    symbol = subject.source.batch_symbol
    size = 0 if symbol is None else batch.sizes.get(symbol, 0)
    targets = targets_of(batch) or labels_of(batch, subject.model)
    return any(target.numel() >= _MANY * size for target in targets.values())


def later_batch(subject: Subject, *, few: bool) -> Batch:
    """Return the batch of the steps after the first.

    Args:
        subject: Whose steps.
        few: Leave samples out, where the step is the plain one and every tensor has the batch dimension.
    """
    batch, symbol = subject.batch(), subject.source.batch_symbol
    if not few or symbol is None or subject.contract.train_step is not None:
        return batch
    size = batch.sizes.get(symbol, 0)
    return subject.few(batch, how_few(subject, batch, size), aligned=True) or batch


def seed_of(subject: Subject, step: int) -> int:
    """Return the seed of a step; the plain steps after the first share one, so that their losses can be compared."""
    return subject.seed + (step if subject.contract.train_step is not None else min(step, 1))
