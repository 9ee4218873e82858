"""A declared step, and the model, on a batch with a sample less than the declared one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ...codes import behaviour as explain
from ...runs.facts import outputs
from ...runs.training.steps import trajectory
from ...state import seed_everything
from ...subject.errors import SubjectError

if TYPE_CHECKING:
    from ...batches import Batch
    from ...findings import Finding
    from ...subject import Subject


def step_of_fewer(subject: Subject) -> Finding | None:
    """Return how a declared step fails on the batch without its last sample, or None.

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
    with subject.pristine(steps=True) as model:
        model.train()
        seed_everything(subject.seed)
        optimizer = subject.make_optimizer(model)
        try:
            subject.train_step(model, optimizer, fewer.clone())
        except SubjectError as error:
            return explain.step_size_crash(subject, fewer, error)
    return None


def size_of_all(subject: Subject, batch: Batch, symbol: str | None) -> Finding | None:
    """Say that the model runs at the size of the real batch alone, where one sample less shows it."""
    size = batch.sizes.get(symbol or "", 0)
    if symbol is None or size < 2:
        return None
    shorter = subject.source.rows(batch, torch.arange(size - 1))
    try:
        outputs(subject, shorter)
    except SubjectError as error:
        return explain.fixed_size(
            subject, shorter, size, error, groups=_runs_twice(subject, batch, size)
        )
    return None


def _runs_twice(subject: Subject, batch: Batch, size: int) -> bool:
    """Say whether the model takes the samples of a batch twice, as one that reads them in groups does."""
    try:
        outputs(subject, subject.source.rows(batch, torch.arange(2 * size) % size))
    except SubjectError:
        return False
    return True
