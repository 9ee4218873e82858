"""Each element counts in a loss as much as the others do, in a batch of any size and under any mask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from ...codes import loss as explain
from ...probes.loss.places import by_place
from ...probes.loss.weights import crowding, is_separate, reductions
from ...subject.errors import SubjectError
from ...verdicts import inconclusive, not_applicable, passed
from .targets import base_slopes, loss_of_output, repeats

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...findings import Finding
    from ...probes.loss.slopes import LossOfOutput
    from ...subject import Subject

_SAMPLES: Final = 3
"""How many samples are repeated: five copies of a few are little beside a batch, also of large outputs."""


def loss_weights(subject: Subject) -> Iterator[Finding]:
    """Repeat some samples two, three and five times; move samples; count one element more in each mask of the targets.

    The loss is called with one output of the model, and its gradients with respect to this output are compared.
    Averaged terms give all copies of a sample together the gradient that it had alone, summed ones give it
    to each copy. Both in one loss are a violation: the weight of one term beside the other depends on the
    size of the batch. So is a term of which the copies together have less than one sample alone, where no sample's
    gradient depends on another's output: it is divided by their number twice. Where outputs and targets move to
    other places together and each sample's gradient keeps its direction but not its length, the loss weighs by
    place. A mask is a target of zeros and ones that says which elements have a gradient. If the
    elements that counted count for more once another one does, the mean is taken over the others.
    """
    loss = loss_of_output(subject)
    if isinstance(loss, str):
        yield not_applicable(loss)
        return
    axis, symbol = subject.contract.batch_dim, subject.source.leading_symbol
    size = 0 if symbol is None else loss.batch.sizes.get(symbol, 0)
    where = _axes(subject, loss, size) if axis is not None and size else None
    if axis is None or symbol is None or where is None:
        yield not_applicable("the outputs do not have one entry for each sample")
        return
    base = base_slopes(subject, loss)
    if base is None or not base.finite or not base.by_output or not repeats(loss, base):
        yield inconclusive("the loss has no finite gradient that repeats with the same seed")
        return
    if base.plain is not None and axis == 0:
        yield passed(_told("summed" if base.plain.summed else "averaged", 0))
        return
    few, count = loss.cut(torch.arange(min(size, _SAMPLES)), where), min(size, _SAMPLES)
    try:
        found = reductions(few, where, count)
        if found is not None and found.divided and not is_separate(loss, base, where):
            found = None  # it relates samples to each other
    except SubjectError:
        found = None  # batch-sizes judges what is refused
    if found is not None and found.averaged and found.summed and not found.divided:
        yield explain.mixed_reductions(subject, few, found, where, count)
        return
    one = loss.samples(axis) == size and len(loss.axes_of(size)) == 1
    placed = by_place(subject, loss, base, axis, size) if one else None
    if placed is not None:
        yield explain.by_place(subject, placed)
        return
    if found is not None and found.divided:
        yield explain.divided_again(subject, few, found, where, count)
        return
    axes, tried = subject.source.axes(symbol), 0
    for path, target in loss.targets().items():
        if path in axes and not target.is_complex():
            more, wrong = crowding(loss, base, path, target, axes[path])
            tried += more
            if wrong is not None:
                yield explain.mean_over_others(subject, loss, wrong)
                return
    if found is None and not tried:
        yield not_applicable("the loss relates samples to each other, and there is no mask")
        return
    kind = None if found is None else "averaged" if found.averaged else "summed"
    yield passed(_told(kind, tried))


def _axes(subject: Subject, loss: LossOfOutput, size: int) -> dict[str, int] | None:
    """Return where the samples stand in each output, by path; None where an output has no entry for each of them.

    Cost: one forward of some samples where it is not the batch dimension of the contract in all outputs.
    """
    axis = subject.contract.batch_dim or 0
    if loss.samples(axis) == size:
        return dict.fromkeys(loss.outputs, axis)
    few = subject.few(loss.batch, _SAMPLES)
    if few is None or not all(size in tensor.shape for tensor in loss.outputs.values()):
        return None
    try:
        return loss.axes_by(subject.forward(few), size, _SAMPLES)
    except SubjectError:
        return None  # batch-sizes judges it


def _told(kind: str | None, tried: int) -> str:
    """Say what was seen of a sound loss."""
    said = []
    if kind is not None:
        said.append(f"every term is {kind} over the samples, in batches of up to five copies")
    if tried:
        said.append(f"no element counts for more when another one does ({tried} tried)")
    return "; ".join(said)
