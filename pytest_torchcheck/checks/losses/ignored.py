"""Targets that are declared as ignored have no say in the loss."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from ...codes import labels as explain
from ...probes.loss.merging import Merging, pulled_apart
from ...specs import Labels
from ...verdicts import inconclusive, passed
from .labels import largest_by_target, output_gradients

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...batches import Batch
    from ...findings import Finding
    from ...subject import Subject

_MOST_LABELS: Final = 8


def ignored_targets(subject: Subject) -> Iterator[Finding]:
    """Mark half of the targets as ignored; the loss's gradient at their outputs must be zero.

    Labels that a model takes as an input, and computes its own loss of, are targets too.
    """
    specs = {p: s for p, s in subject.source.specs.items() if isinstance(s, Labels)}
    where, ignore = next(
        (p, s.ignore_index) for p, s in specs.items() if s.ignore_index is not None
    )
    batch = subject.batch()
    targets = batch.tensors().get(where)
    if targets is None:
        yield inconclusive("the targets are not a single tensor")
        return
    marks = (torch.arange(targets.numel(), device=targets.device) % 2 == 0).view(targets.shape)
    other = torch.where(marks, torch.full_like(targets, ignore), targets)
    marked = batch.map(lambda p, leaf: other if p == where else leaf)
    found = output_gradients(subject, marked)
    if found is None:
        yield inconclusive(
            "the gradient of the loss with respect to the outputs could not be computed"
        )
        return
    for path, grad in found[1].items():
        ways = [
            way for way in largest_by_target(grad, targets.shape) if bool((way[~marks] > 0).any())
        ]
        if not ways:
            continue
        at = min((way[marks] for way in ways), key=lambda pulled: float(pulled.max()))
        if bool((at > 0).any()):
            with Merging(marks) as merging:
                output_gradients(subject, marked)
            share = float((at > 0).float().mean())
            # of one output, as in smoothed labels, it is a term of the criterion that was not masked
            apart = len(found[1]) > 1 and pulled_apart(
                grad, _as_labels(subject, batch, where, marks, path), marks
            )
            yield explain.counted(
                subject, path, ignore, share, float(at.max()), merging.counted, apart=apart
            )
            return
        yield passed(f"{int(marks.sum())} targets of {ignore} give {path} no gradient")
        return
    yield inconclusive("no output has one entry for each target")


def _as_labels(
    subject: Subject, batch: Batch, where: str, marks: torch.Tensor, path: str
) -> Iterator[torch.Tensor]:
    """Yield an output's gradients where the marked targets are labels of the batch, one after the other."""
    targets = batch.tensors()[where]

    def with_label(label: int) -> Batch:
        other = torch.where(marks, torch.full_like(targets, label), targets)
        return batch.map(lambda p, leaf: other if p == where else leaf)

    for label in targets[targets >= 0].unique()[:_MOST_LABELS].tolist():
        found = output_gradients(subject, with_label(label))
        if found is not None and path in found[1]:
            yield found[1][path]
