"""The declared training step on one sample less."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ...codes import behaviour as explain
from ...objects import trees
from ...record.tracing import swallowed
from ...runs.training.steps import trajectory
from ...subject.errors import SubjectError

if TYPE_CHECKING:
    from ...batches import Batch
    from ...findings import Finding
    from ...record.tracing import Swallowed
    from ...subject import Subject


def step_of_fewer(subject: Subject) -> Finding | None:
    """Return how a declared step fails on the batch without its last sample, or learns nothing of it, or None.

    Asked where every tensor has one entry per sample. A mismatch that equal sizes hide, such as a
    weight for each sample beside an image as wide as the batch is large, shows at another size.
    """
    batch, symbol = subject.batch(), subject.source.batch_symbol
    if subject.contract.train_step is None or symbol is None or batch.sizes.get(symbol, 0) < 3:
        return None
    fewer = subject.few(batch, batch.sizes[symbol] - 1, aligned=True)
    if fewer is None:
        return None
    whole = trajectory(subject)
    if whole.error is not None and not whole.losses:
        raise whole.error  # it fails on all samples: nothing is known of fewer
    try:
        if _learns(subject, fewer):
            return None
    except SubjectError as error:
        if _needs_its_samples(subject, batch, batch.sizes[symbol]):
            return None
        return explain.step_size_crash(subject, fewer, error)
    if not _learns(subject, batch):
        return None  # one call alone does not show it
    usual = {one.place for one in _swallowed(subject, batch)}
    errors = [one for one in _swallowed(subject, fewer) if one.place not in usual]
    return explain.step_swallows(subject, fewer, errors[-1]) if errors else None


def _needs_its_samples(subject: Subject, batch: Batch, size: int) -> bool:
    """Say whether the step fails at the declared size too, with one sample in place of the last: pairs, two halves."""
    try:
        _learns(subject, subject.source.rows(batch, torch.arange(size) % (size - 1)))
    except SubjectError:
        return True
    return False


def _learns(subject: Subject, batch: Batch) -> bool:
    """Say whether one call of the step writes to a parameter, or leaves a gradient."""
    with subject.pristine(steps=True, train=True, seeded=True) as model:
        subject.train_step(model, subject.make_optimizer(model), batch.clone())
        return any(
            (p.grad is not None and bool(trees.dense(p.grad).any()))
            or (then := subject.state.original(p)) is None
            or not trees.same(p, then)
            for p in model.parameters()
            if not p.is_meta
        )


def _swallowed(subject: Subject, batch: Batch) -> list[Swallowed]:
    with subject.pristine(steps=True, train=True, seeded=True) as model:
        optimizer = subject.make_optimizer(model)
        return swallowed(lambda: subject.train_step(model, optimizer, batch.clone()))
