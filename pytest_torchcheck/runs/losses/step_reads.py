"""Which samples the user's own training step reads: those of its first batch, and of a later one."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import torch

from ...lean import dataclass
from ...objects import trees
from ...probes.loss.arguments import all_finite, by_step, same_results, targets_of
from ...subject.errors import SubjectError
from ...subject.remembered import remembered
from ..facts import outputs
from ..training.step_rows import OutputRows, exchanged, pairs_of

if TYPE_CHECKING:
    from ...batches import Batch
    from ...subject import Subject
    from ..training.step_rows import Pairs

_OTHERS: Final = 3
"""How many other batches give a sample its other values."""
_LARGE: Final = 100.0
"""How many times an input is larger that stands out, as a hard sample may be chosen by."""
_SEEDS: Final = 2
_DRAWS: Final = 4
"""Under how many other seeds a sample stays unread that no draw leaves out."""
_FEW: Final = 4
"""How many inputs are asked one by one."""
_MOST: Final = 16
"""Samples of which each is asked whether it is read, once one is not."""
_DIVISIBLE: Final = 24
"""A batch size that parts of the usual numbers divide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReads:
    """What a training step left unread, or compared wrongly; plain data.

    Attributes:
        skipped: Samples that have no influence.
        size: How many there are.
        later: Whether a second step reads nothing of its batch, where the first one did.
        targets: The same of its targets alone.
        sure: Whether samples stay out whatever they hold, in a larger batch too or half of them; of inputs, whether
            the targets that are read cannot hold the samples.
        inputs: Paths of inputs that have no influence, in any sample.
        pairs: What outputs are compared with, where that is not their own targets.
    """

    skipped: tuple[int, ...] = ()
    size: int = 0
    later: bool = False
    targets: bool = False
    sure: bool = False
    inputs: tuple[str, ...] = ()
    pairs: Pairs | None = None


@remembered("step-reads")
def step_reads(subject: Subject) -> StepReads | None:
    """Give single samples of a batch other values, and look whether a step changes; None where all is read.

    The last one is asked in a first step, the first one in a second, so that a step which keeps its
    first batch shows, and all targets in a second, which may keep those. Of the last one the inputs
    change alone, and then its targets: outputs that the former move are those on which the latter pull.
    None, too, where samples cannot be exchanged or a step raises.
    """
    batch = subject.batch()
    size = _samples(subject, batch)
    if size < 2 or any(t.device.type != "cpu" for t in batch.tensors().values()):
        return None
    rows, own = OutputRows(), OutputRows()
    try:
        base, other = by_step(subject, batch, around=rows.around), subject.batch(1)
        if not base or not all_finite(base):
            return None
        given = exchanged(subject, batch, other, [size - 1], "inputs")
        last = same_results(base, by_step(subject, given, around=own.around))
        if unread := _inputs(subject, batch, base, none=last):
            return unread
        last = last and _is_unread(subject, batch, base, [size - 1])
        last = last or (size % 2 == 1 and _is_unread(subject, batch, base, [size - 2]))
        first = exchanged(subject, batch, other, [0])
        twice = by_step(subject, batch, batch)
        if same_results(twice, by_step(subject, batch, first)):
            if not same_results(base, by_step(subject, first)):
                whole = by_step(subject, batch, other)
                return StepReads(size=size, later=True) if same_results(twice, whole) else None
        elif not last:
            kept = _of_targets(subject, batch, twice, base)
            pairs = None if kept is not None else pairs_of(subject, batch, rows, own, size)
            return kept if pairs is None else StepReads(size=size, pairs=pairs)
        return _left_out(subject, batch, base, size)
    except SubjectError:
        return None


def _is_unread(
    subject: Subject, batch: Batch, base: dict[str, torch.Tensor], samples: list[int]
) -> bool:
    """Say whether samples as they are in another batch change nothing of a step."""
    return same_results(
        base, by_step(subject, exchanged(subject, batch, subject.batch(1), samples))
    )


def _inputs(
    subject: Subject, batch: Batch, base: dict[str, torch.Tensor], *, none: bool
) -> StepReads | None:
    """Return the inputs that a step never reads, all of them or some.

    Not where nothing of the batch is a target: the step may make its data. Nor, of some, where the step draws, as
    it may draw these, or where a target has their form, as what a decoder gets is made of its targets.

    Args:
        subject: The subject.
        batch: The batch.
        base: What a step gives of it.
        none: Whether other inputs of the last sample changed nothing.
    """
    axes = subject.source.axes(subject.source.batch_symbol or "")
    inputs = {p: t for p, t in batch.input_leaves() if isinstance(t, torch.Tensor) and p in axes}
    targets, size = targets_of(batch), _samples(subject, batch)
    if not targets or not inputs:
        return None
    if none:
        if not _never_read(subject, batch, base, tuple(inputs)):
            return None
        most = max(t.numel() for t in inputs.values())
        sure = all(
            t.numel() < most and (not t.is_floating_point() or t.numel() == size)
            for t in targets.values()
        )
        return StepReads(inputs=tuple(inputs), size=size, sure=sure)
    if not 1 < len(inputs) <= _FEW:
        return None
    unread = [path for path in inputs if _never_read(subject, batch, base, (path,), [size - 1])]
    forms = {(t.shape, t.dtype) for t in targets.values()}
    unread = [p for p in unread if (inputs[p].shape, inputs[p].dtype) not in forms]
    unread = [p for p in unread if _never_read(subject, batch, base, (p,)) and _moves(subject, p)]
    if not unread or not same_results(base, by_step(subject, batch, seed=1)):
        return None
    return StepReads(inputs=tuple(unread), size=size)


def _never_read(
    subject: Subject,
    batch: Batch,
    base: dict[str, torch.Tensor],
    paths: tuple[str, ...],
    samples: list[int] | None = None,
) -> bool:
    """Say whether other values of some inputs change nothing of a step: of all samples, also under other seeds."""
    tried = False
    for index in (1,) if samples is not None else (1, 2):
        fresh = subject.batch(index)
        given = exchanged(subject, batch, fresh, samples or [*range(_samples(subject, batch))])
        values = given.tensors()
        only = batch.map(lambda p, leaf, v=values: v[p] if p in paths else leaf)  # type: ignore[misc]
        own = batch.tensors()
        if all(trees.same(own[p], values[p]) for p in paths):
            continue
        tried = True
        if not same_results(base, by_step(subject, only)):
            return False
        for seed in range(1, _SEEDS + 1) if samples is None else ():
            again = by_step(subject, batch, seed=seed)
            if not same_results(again, by_step(subject, only, seed=seed)):
                return False
    return tried


def _moves(subject: Subject, path: str) -> bool:
    """Say whether other values of an input change an output in eval mode."""
    value = subject.batch(1).tensors()[path]
    other = subject.batch().map(lambda p, leaf: value if p == path else leaf, targets=False)
    mine, theirs = outputs(subject), outputs(subject, other)
    return any(p in mine and not trees.same(mine[p], t) for p, t in theirs.items())


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
    for seed in range(1, _DRAWS + 1):
        given = exchanged(subject, batch, subject.batch(1), skipped)
        again = by_step(subject, batch, seed=seed)
        if not same_results(again, by_step(subject, given, seed=seed)):
            return None  # which samples it takes is drawn
    # parts of one size leave a remainder, which is smaller than a part
    sure = _by_place(subject, batch, skipped, size) and (
        2 * len(skipped) >= size or _in_a_larger_batch(subject)
    )
    return StepReads(skipped=tuple(skipped), size=size, sure=sure)


def _by_place(subject: Subject, batch: Batch, skipped: list[int], size: int) -> bool:
    """Say whether the place decides what is read: no sample is that stands in the place of one that is not."""
    read = [sample for sample in range(size) if sample not in skipped]
    for there in read[:_OTHERS]:
        order = torch.arange(size)
        order[[there, skipped[0]]] = order[[skipped[0], there]]
        turned = subject.source.rows(batch, order)
        base = by_step(subject, turned)
        given = exchanged(subject, turned, subject.batch(1), [skipped[0]])
        if not same_results(base, by_step(subject, given)):
            return False
    return True


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
            if not same_results(base, by_step(subject, exchanged(subject, batch, given, [sample]))):
                return False
        for on in (True, False):
            given = exchanged(subject, batch, _marked(other, math.nan, on=on), [sample])
            if not _same_loss(base, by_step(subject, given)):
                return False
    return True


def _same_loss(base: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Say whether a NaN was not read: its gradient is NaN even where nothing of it is used."""
    if "loss" in base and "loss" in other:
        return trees.same(base["loss"], other["loss"])
    return same_results(base, other)


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
