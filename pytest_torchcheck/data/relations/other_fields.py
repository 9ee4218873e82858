"""Whether what stands last in a sample is a label of the contract's kind, or another field such as a second view."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..wording import where

if TYPE_CHECKING:
    from ...batches import Batch
    from ..describing import Leaf
    from ..labels import Labels
    from ..reading import Survey


def why_no_label(
    found: Survey, labels: Labels, batch: Batch | None, wants_float: bool | None
) -> str | None:
    """Say why a field that stands where labels do is not what the contract's targets are; None where it may be.

    A data set may serve another purpose than the contract's targets: pairs of views, of sentences or of
    noisy and clean signals have no label. Their last field has other axes than the targets have, or is of
    the kind of the field beside it.

    Args:
        found: The samples.
        labels: What stands last in them.
        batch: The contract's own batch, where it has targets.
        wants_float: Whether the targets are floats, as far as declared.
    """
    shape = f"{where(labels.path)}, {labels.dtype} {list(labels.shape)},"
    twin = _twin(found, labels)
    due = _axes_due(found, batch)
    if (
        due is not None
        and _axes(labels.shape) not in due
        and ((labels.is_floating and found.part.plan.collate_fn is None) or twin is not None)
    ):
        return f"{shape} has other axes than the target of a sample in the contract's batch"
    if wants_float is None or labels.is_floating == wants_float:
        return None
    if not _axes(labels.shape):
        own = _class_beside(found) if labels.is_floating else None
        told = f"holds whole numbers, as the contract's targets are, and {shape} does not"
        return None if own is None else f"{where(own)} {told}"
    if labels.is_floating and not labels.whole:
        return f"the contract's targets are whole numbers, and {shape} holds fractions"
    if twin is not None:
        return f"{shape} is like {where(twin)}, and not of the dtype of the contract's targets"
    return None


def _twin(found: Survey, labels: Labels) -> str | None:
    """Return the path of an input of the first sample that is like the last field, or None."""
    sample = found.samples[0]
    leaves: tuple[Leaf, ...] = sample.inputs
    return next(
        (
            leaf.path
            for leaf in leaves
            if _axes(labels.shape)
            and _axes(leaf.shape) == _axes(labels.shape)
            and (leaf.dtype, leaf.whole) == (labels.dtype, labels.whole)
        ),
        None,
    )


def _class_beside(found: Survey) -> str | None:
    """Return the path of a whole number beside the last field, other than the sample's own index, or None.

    The last field may then be a weight, a score or another quantity of the sample.
    """
    for leaf in found.samples[0].inputs:
        if leaf.is_floating or leaf.dtype == "bool" or _axes(leaf.shape) or leaf.low is None:
            continue
        values = [
            (one.low, sample.index)
            for sample in found.samples
            for one in sample.inputs
            if one.path == leaf.path
        ]
        if len({low for low, _ in values}) > 1 and any(low != index for low, index in values):
            return leaf.path
    return None


def _axes_due(found: Survey, batch: Batch | None) -> set[int] | None:
    """Return how many axes longer than 1 the target of one sample may have, or None where that is unknown."""
    targets = None if batch is None else batch.targets
    if batch is None or not isinstance(targets, torch.Tensor) or not targets.dim():
        return None
    rows = {
        leaf.shape[0]
        for _, leaf in batch.input_leaves()
        if isinstance(leaf, torch.Tensor) and leaf.dim()
    }
    if rows != {targets.shape[0]}:
        return None  # targets of several positions may be flattened with the batch
    whole_batches = not found.part.plan.makes_batches
    return {_axes(targets.shape[1:]), *([_axes(targets.shape)] if whole_batches else [])}


def _axes(shape: tuple[int, ...] | torch.Size) -> int:
    return sum(1 for size in shape if size != 1)
