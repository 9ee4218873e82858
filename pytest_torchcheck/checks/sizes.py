"""Batches of other sizes work, also with a sample less, and give each sample the same."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, TypeVar

import torch

from ..codes import behaviour as explain
from ..codes import gradients
from ..late import Late
from ..objects import trees
from ..probes.numbers.domains import holds_nonfinite
from ..runs.facts import evaluated, forward_facts, kept_by, outputs
from ..runs.losses.order import loss_of_samples
from ..runs.outputs import Rows, gaps_between, other_batch_dim, output_rows
from ..runs.remembering import remembered
from ..runs.variants.largest import at_batch, crossed, exchanged, sizes_of, told_apart
from ..runs.variants.woken import hidden
from ..subject.errors import SubjectError
from ..verdicts import inconclusive, passed
from .batching import (
    ROUNDED,
    ROUNDING,
    compare,
    draws_in_eval,
    independence,
    is_quantized,
    is_stochastic,
)
from .steps.fewer import step_of_fewer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..batches import Batch
    from ..findings import Finding
    from ..subject import Subject

_Made = TypeVar("_Made")
examples = Late("strategies.sequence:examples")
sweep = Late("strategies.sequence:sweep")
"""These draw batches of other sizes; a run that draws none does not import Hypothesis."""


def batch_sizes(subject: Subject) -> Iterator[Finding]:
    """Run batches of the declared sizes, edges first, a batch of one, and your step on one sample less.

    The step must learn from the smaller batch too: one that catches an error there and changes nothing is
    reported. In eval mode, single samples run at sizes spread over the declared ranges.

    A batch of another size must leave nothing in the model that changes the output of the base batch. Samples
    of a large batch must give the same output in a batch of only a few of them. What is finite at the sizes of
    the base batch must be so at larger ones.

    Where no sizes are declared, the model runs on one sample less; the loss does on one sample less of the
    outputs and targets. Both must return as many samples as they are given.
    """
    if (failed := step_of_fewer(subject)) is not None:
        yield failed
        return
    tried = 0
    if subject.source.declared_sizes:
        drawn = [
            subject.place(b)
            for b in examples(subject.source, subject.examples, subject.seed, targets=False)
        ]
        found = list(_sizes_drawn(subject, drawn)) or list(_sizes_swept(subject))
        if found:
            yield from found
            return
        tried = len(drawn)
    batch = subject.batch()
    symbol = subject.source.batch_symbol
    rows = output_rows(subject)
    if symbol is None or rows is None or not rows.dims or is_quantized(subject.model):
        if tried:
            yield passed(f"{tried} batches of other sizes ran")
        elif (fixed := size_of_all(subject, batch, symbol)) is not None:
            yield fixed
        else:
            yield inconclusive("no sizes are declared, and samples cannot be taken from the batch")
        return
    yield loss_of_fewer(subject, batch) or _alone(subject, batch, rows, tried)


def _alone(subject: Subject, batch: Batch, rows: Rows, tried: int) -> Finding:
    """Compare the first sample alone with the first of the batch.

    Where the declared sizes begin at more samples, what shows in as many is violated, and what shows alone suspicious.
    """
    symbol = subject.source.batch_symbol or ""
    span = subject.source.symbols.get(symbol)
    least = span.low if span is not None and span.declared else 1
    found, beside = _among(subject, batch, rows, 1), "alone and in the batch"
    if found is not None and least > 1:
        beside = f"among {least} and in the batch" if least < batch.sizes[symbol] else ""
        doubtful = found.replace(status="suspicious") if found.code == "batch-of-one" else None
        found = (_among(subject, batch, rows, least) if beside else None) or doubtful
    if found is not None:
        return found
    for other, made in subject.cache.pop("told-apart", ()):
        if (found := _among_many(subject, rows, other, made)) is not None:
            return found
    same = f"; the first sample gives the same output {beside}" if beside else ""
    return passed(f"{tried} batches of other sizes ran{same}")


def _among(subject: Subject, batch: Batch, rows: Rows, count: int) -> Finding | None:
    """Return how the first sample differs between a batch of so many and the whole one; None where it does not."""
    single = subject.source.rows(batch, torch.arange(count))
    full = outputs(subject)
    try:
        alone = outputs(subject, single)
    except SubjectError as error:
        return explain.size_crash(subject, single, error)
    for path, dim in rows.dims.items():
        wanted = list(full[path].shape)
        wanted[dim] = count
        if path not in alone or list(alone[path].shape) != wanted:
            got = list(alone[path].shape) if path in alone else None
            return explain.single_shape(subject, single, path, wanted, got)
    first = torch.zeros(1, dtype=torch.int64)
    symbol = subject.source.batch_symbol or ""
    pair = subject.source.rows(batch, torch.arange(2)) if batch.sizes[symbol] > 2 else None
    gaps = (
        None
        if is_stochastic(subject) or _rounded_alone(subject, batch, rows, full, alone)
        else compare(subject, batch, single, rows, first, first, small=pair, known=(full, alone))
    )
    if gaps is not None and (forward_facts(subject).consumed or draws_in_eval(subject)):
        gaps = None  # the random numbers of a batch of one are others; eval-determinism judges that
    if gaps is not None and other_batch_dim(subject) is None:
        return explain.size_dependent(subject, batch, single, rows, gaps)
    return None


def _rounded_alone(
    subject: Subject,
    batch: Batch,
    rows: Rows,
    full: dict[str, torch.Tensor],
    alone: dict[str, torch.Tensor],
) -> bool:
    """Say whether the first sample has the same bits among two as among all, and alone differs by rounding.

    The size decides nothing then but which kernels run; where weights that start at zero or near it hide a
    part of the model, float64 has to tell.
    """
    few = subject.few(batch)
    if few is None or any(t.dtype == torch.float64 for t in full.values()) or hidden(subject):
        return False
    first = torch.zeros(1, dtype=torch.int64)
    try:
        among = gaps_between(full, outputs(subject, few), rows, first, first)
    except SubjectError:
        return False
    apart = gaps_between(full, alone, rows, first, first)
    return not any(among.values()) and all(gap <= ROUNDED for gap in apart.values())


def _among_many(
    subject: Subject, rows: Rows, batch: Batch, made: dict[str, torch.Tensor]
) -> Finding | None:
    """Compare the first, the middle and the last sample of a batch with a batch of these alone."""
    size = batch.sizes[subject.source.batch_symbol or ""]
    if is_stochastic(subject) or "batch-independence" in subject.contract.skip:
        return None
    places = torch.tensor(sorted({0, size // 2, size - 1} if size > 3 else {0}))
    three = torch.arange(len(places))
    few = subject.source.rows(batch, places)
    with contextlib.suppress(SubjectError):  # what refuses so few is told of other batches
        some = outputs(subject, few)
        if max(gaps_between(made, some, rows, places, three).values()) <= ROUNDING:
            return None
        gaps = compare(subject, batch, few, rows, places, three, known=(made, some))
        random = forward_facts(subject).consumed or draws_in_eval(subject)
        if gaps is not None and not random and other_batch_dim(subject) is None:
            for found in independence(at_batch(subject, batch)):
                if found.status == "violated":  # samples that are mixed at these sizes only
                    return found.replace(because=f"{found.because}; seen at {sizes_of(batch)}")
            return explain.size_dependent(subject, batch, few, rows, gaps, places)
    return None


def _sizes_drawn(subject: Subject, drawn: list[Batch]) -> Iterator[Finding]:
    """Yield the first batch that does not run, or that leaves in the model what changes the base batch's output."""
    keeps: list[tuple[Batch, list[str]]] = []
    telling = tuple(map(id, told_apart(subject, drawn)))
    for batch in drawn:
        try:
            names, made = kept_by(subject, batch)
        except SubjectError as error:
            yield explain.size_crash(subject, batch, error)
            return
        if (broken := _overflown(subject, batch, made)) is not None:
            yield gradients.non_finite_at(subject, batch, broken)
            return
        if kept := [n for n in names if not subject.is_promised("MayChange", n)]:
            keeps.append((batch, kept))
        if id(batch) in telling:
            subject.cache.setdefault("told-apart", []).append((batch, made))
    if keeps and forward_facts(subject).keeps:
        if remembered(subject):
            return  # what sizes of the base batch leave behind is judged by eval-purity
        keeps = [max(keeps, key=lambda one: sum(t.numel() for t in one[0].tensors().values()))]
    if keeps:  # what is kept by a part of the sizes is the same for other ones
        keeps += [(other, keeps[0][1]) for other in exchanged(subject)]
    for other, kept in keeps:
        if moved := remembered(subject, other=other):
            yield explain.remembers(subject, list(moved), kept, other)
            return
    for other, base in crossed(subject) if keeps else ():
        if moved := remembered(subject, other=other, base=base):
            yield explain.remembers(subject, list(moved), keeps[0][1], other, base)
            return


def _overflown(subject: Subject, batch: Batch, made: dict[str, torch.Tensor]) -> list[str] | None:
    """Return the outputs that are not finite at larger sizes, where those of the base batch are; else None."""
    sizes = subject.batch().sizes
    larger = all(size >= sizes.get(name, 0) for name, size in batch.sizes.items())
    broken = [path for path, output in made.items() if holds_nonfinite(output)]
    if not larger or not broken:
        return None
    base = forward_facts(subject).outputs
    return None if any(map(holds_nonfinite, base.values())) else broken


def _sizes_swept(subject: Subject) -> Iterator[Finding]:
    """Yield the first batch of a sweep over all declared sizes that does not run."""
    for batch in sweep(subject.source, subject.seed):
        placed = subject.place(batch)
        try:
            outputs(subject, placed)
        except SubjectError as error:
            yield explain.size_crash(subject, placed, error)
            return


def size_of_all(subject: Subject, batch: Batch, symbol: str | None) -> Finding | None:
    """Say that the model runs at the size of the real batch alone, or returns as many outputs for a sample less."""
    size = batch.sizes.get(symbol or "", 0)
    if symbol is None or size < 2:
        return None
    shorter = subject.source.rows(batch, torch.arange(size - 1))
    counted = _entries(subject, size)
    try:
        made = outputs(subject, shorter)
    except SubjectError as error:
        more = _twice(lambda index: outputs(subject, subject.source.rows(batch, index)), size)
        grows = more is not None and not (counted and _as_many(counted, more))
        doubled = (
            f"with {2 * size} it raises too"
            if more is None
            else f"with {2 * size} it returns {size} outputs"
        )
        meant = grows or bool(counted and not _own(subject, batch, counted, size))
        return explain.fixed_size(subject, shorter, size, error, meant=meant, doubled=doubled)
    if counted and _as_many(counted, made) and _own(subject, batch, counted, size, moves=True):
        return explain.fixed_count(subject, shorter, next(iter(counted)), size)
    return None


def loss_of_fewer(subject: Subject, batch: Batch) -> Finding | None:
    """Say how the loss fails on the outputs and targets of one sample less, where the batch may be as small."""
    symbol = subject.source.batch_symbol or ""
    size, loss = batch.sizes.get(symbol, 0), subject.contract.loss
    span = subject.source.symbols.get(symbol)
    declared = span is not None and span.declared and span.low > size - 1
    if loss is None or isinstance(loss, str) or size < 3 or declared:
        return None
    try:
        runs = loss_of_samples(subject, evaluated(subject))
    except SubjectError:
        return None  # told by other checks
    if runs is None:
        return None
    try:
        runs(torch.arange(size - 1))()
    except SubjectError as error:
        try:
            runs(torch.arange(size))()
        except SubjectError:
            return None  # it fails on all of them: other checks tell it
        more = _twice(lambda index: runs(index)(), size)
        fewer = subject.source.rows(batch, torch.arange(size - 1))
        found = explain.fixed_size(
            subject,
            fewer,
            size,
            error,
            meant=more is not None,
            doubled=f"with {2 * size} it raises too",
        )
        return found if found.status == "violated" else None  # pairs, or a table for all samples
    return None


def _entries(subject: Subject, size: int) -> dict[str, torch.Tensor]:
    """Return the outputs of the base batch that have an entry for each of its samples."""
    axis = subject.contract.batch_dim or 0
    return {p: t for p, t in outputs(subject).items() if t.shape[axis : axis + 1] == (size,)}


def _as_many(counted: dict[str, torch.Tensor], made: dict[str, torch.Tensor]) -> bool:
    """Say whether outputs have the same shapes for another number of samples."""
    return all(p in made and made[p].shape == t.shape for p, t in counted.items())


def _twice(run: Callable[[torch.Tensor], _Made], size: int) -> _Made | None:
    """Return what the samples of a batch give twice, as those that are read in groups do; None where that raises."""
    try:
        return run(torch.arange(2 * size) % size)
    except SubjectError:
        return None


def _own(
    subject: Subject,
    batch: Batch,
    counted: dict[str, torch.Tensor],
    size: int,
    *,
    moves: bool = False,
) -> bool:
    """Say whether no output of another sample changes where the second takes the place of the first.

    Args:
        subject: The model.
        batch: A batch.
        counted: The outputs that have an entry for each sample.
        size: How many samples there are.
        moves: Whether those of the first have to change.
    """
    axis, index = subject.contract.batch_dim or 0, torch.arange(size).clamp(min=1)
    try:
        made = outputs(subject, subject.source.rows(batch, index))
    except SubjectError:
        return False
    for path, before in counted.items():
        after = made.get(path)
        if after is None or after.shape != before.shape:
            return False
        others = [t.narrow(axis, 1, size - 1) for t in (before, after)]
        if trees.worst(*others) > ROUNDING * max(trees.scale(before), 1e-30):
            return False
        if moves and trees.same(before, after):
            return False
    return True
