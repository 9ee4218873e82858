"""Which samples the user's own training step reads: those of its first batch, and of a later one."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import torch

from ...batches.rows import choose_rows
from ...lean import dataclass
from ...objects import trees
from ...probes.loss.arguments import all_finite, by_step, same_results, targets_of
from ...subject.errors import SubjectError
from ...subject.remembered import remembered

if TYPE_CHECKING:
    from ...batches import Batch
    from ...subject import Subject

_OTHERS: Final = 3
"""How many other batches give a sample its other values."""
_LARGE: Final = 100.0
"""How many times an input is larger that stands out, as a hard sample may be chosen by."""
_SEEDS: Final = 2
_MOST: Final = 16
"""Samples of which each is asked whether it is read, once one is not."""
_DIVISIBLE: Final = 24
"""A batch size that parts of the usual numbers divide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReads:
    """What a training step left unread; plain data.

    Attributes:
        skipped: Samples that have no influence.
        size: How many there are.
        later: Whether a second step reads nothing of its batch, where the first one did.
        targets: The same of its targets alone.
        sure: Whether samples stay out whatever they hold, in a larger batch too.
    """

    skipped: tuple[int, ...] = ()
    size: int = 0
    later: bool = False
    targets: bool = False
    sure: bool = False


@remembered("step-reads")
def step_reads(subject: Subject) -> StepReads | None:
    """Give the first or the last sample of a batch other values, and look whether a step changes; None where all is read.

    The last one is asked in a first step, the first one in a second, so that a step which keeps its
    first batch shows, and all targets in a second, which may keep those. None, too, where samples
    cannot be exchanged or a step raises.
    """
    batch = subject.batch()
    size = _samples(subject, batch)
    if size < 2 or any(t.device.type != "cpu" for t in batch.tensors().values()):
        return None
    try:
        base, other = by_step(subject, batch), subject.batch(1)
        if not base or not all_finite(base):
            return None
        last = same_results(base, by_step(subject, _exchanged(subject, batch, other, [size - 1])))
        first = _exchanged(subject, batch, other, [0])
        twice = by_step(subject, batch, batch)
        if same_results(twice, by_step(subject, batch, first)):
            if not same_results(base, by_step(subject, first)):
                whole = by_step(subject, batch, other)
                return StepReads(size=size, later=True) if same_results(twice, whole) else None
        elif not last:
            return _of_targets(subject, batch, twice, base)
        return _left_out(subject, batch, base, size)
    except SubjectError:
        return None


def _of_targets(
    subject: Subject, batch: Batch, twice: dict[str, torch.Tensor], base: dict[str, torch.Tensor]
) -> StepReads | None:
    """Say that other targets change a first step and no second one, whatever the seed."""
    if not targets_of(batch):
        return None
    inputs, other = {path for path, _ in batch.input_leaves()}, subject.batch(1).tensors()
    given = batch.map(lambda path, leaf: leaf if path in inputs else other.get(path, leaf))
    if not same_results(twice, by_step(subject, batch, given)):
        return None
    if same_results(base, by_step(subject, given)):
        return None
    for seed in range(1, _SEEDS + 1):
        again = by_step(subject, batch, batch, seed=seed)
        if not same_results(again, by_step(subject, batch, given, seed=seed)):
            return None  # which of several it takes may be drawn
    return StepReads(size=_samples(subject, batch), targets=True)


def _left_out(
    subject: Subject, batch: Batch, base: dict[str, torch.Tensor], size: int
) -> StepReads | None:
    """Return which samples have no influence, tried with several values."""
    asked = range(size) if size <= _MOST else (*range(_MOST // 2), *range(size - _MOST // 2, size))
    skipped = [sample for sample in asked if _is_left_out(subject, batch, base, sample)]
    if not skipped or len(skipped) == len(asked):
        return None  # a step that reads no sample may make its own
    if any(not same_results(base, by_step(subject, batch, seed=n + 1)) for n in range(_SEEDS)):
        return None  # which samples it takes may be drawn
    floats = any(
        isinstance(t, torch.Tensor) and t.is_floating_point() for _, t in batch.input_leaves()
    )
    return StepReads(skipped=tuple(skipped), size=size, sure=floats and _in_a_larger_batch(subject))


def _in_a_larger_batch(subject: Subject) -> bool:
    """Say whether an edge of a batch that can be split evenly is left out as well."""
    symbol = subject.source.batch_symbol
    larger = None if symbol is None else subject.at(**{symbol: _DIVISIBLE})
    if larger is None or _samples(subject, larger) != _DIVISIBLE:
        return False
    base = by_step(subject, larger)
    return bool(base) and any(
        _is_left_out(subject, larger, base, sample) for sample in (0, _DIVISIBLE - 1)
    )


def _is_left_out(
    subject: Subject, batch: Batch, base: dict[str, torch.Tensor], sample: int
) -> bool:
    """Say whether a sample has no influence, whatever it holds, flags and masks included."""
    for seed in range(1, _OTHERS + 1):
        other = subject.at(seed, **batch.sizes) or subject.batch(seed)
        if other.sizes != batch.sizes:
            return False
        tried = [other, *(_marked(other, by, on=by > 0) for by in (_LARGE, -_LARGE))]
        for given in tried:
            if not same_results(
                base, by_step(subject, _exchanged(subject, batch, given, [sample]))
            ):
                return False
        for on in (True, False):
            given = _exchanged(subject, batch, _marked(other, math.nan, on=on), [sample])
            if not _same_loss(base, by_step(subject, given)):
                return False
    return True


def _same_loss(base: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Say whether a NaN was not read: its gradient is NaN even where nothing of it is used."""
    if "loss" in base and "loss" in other:
        return trees.same(base["loss"], other["loss"])
    return same_results(base, other)


def _exchanged(subject: Subject, batch: Batch, other: Batch, samples: list[int]) -> Batch:
    """Return the batch with some samples, targets included, as they are in another one."""
    axes = subject.source.axes(subject.source.batch_symbol or "")
    others = other.tensors()

    def change(path: str, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or path not in axes:
            return leaf
        keep = torch.ones(leaf.shape[axes[path]], dtype=torch.bool)
        keep[samples] = False
        return choose_rows(keep, leaf, others[path], axes[path])

    return batch.map(change)


def _marked(batch: Batch, by: float, *, on: bool) -> Batch:
    """Return the batch with inputs that stand out, and all flags on or off.

    Whole numbers that are negative, as ignored labels are, become zero.
    """
    inputs = {path for path, _ in batch.input_leaves()}

    def change(path: str, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or not trees.computable(leaf) or leaf.is_complex():
            return leaf
        if leaf.dtype == torch.bool or bool(((leaf == 0) | (leaf == 1)).all()):
            return torch.full_like(leaf, on)
        if leaf.is_floating_point():
            return leaf * by if path in inputs else leaf
        return leaf.clamp(min=0)

    return batch.map(change)


def _samples(subject: Subject, batch: Batch) -> int:
    """Return how many samples a batch has whose every tensor has one row for each; else 0."""
    symbol = subject.source.batch_symbol
    if symbol is None or not batch.tensors().keys() <= subject.source.axes(symbol).keys():
        return 0
    return batch.sizes.get(symbol, 0)
