"""A declared step on a batch with a sample less than the declared one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...codes import behaviour as explain
from ...runs.training.steps import trajectory
from ...state import seed_everything
from ...subject.errors import SubjectError

if TYPE_CHECKING:
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
