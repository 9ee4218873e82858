"""The first operation at which two runs differ that should not: what it read agrees, what it gave does not."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from ...lean import dataclass
from ..positions.rereading import find_reread, rows_of_labels
from ..positions.spread import CHOOSING, Spread, first_spread, operands_of, origin
from .operations import Snapshot, Step, Trace, aligned, changed, error, record
from .orders import by_place, made_index

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ...findings import Location
    from ..positions.rereading import Reread, Rows
    from .watch import Op

__all__ = [
    "Divergence",
    "Spread",
    "Trace",
    "first_divergence",
    "first_hiding",
    "first_mixing",
    "first_place_dependence",
    "first_spread",
    "record",
]

DivergenceKind = Literal["value", "shape", "control-flow", "mixing", "place", "recomputed"]
"""``value`` other numbers; ``shape`` another shape or dtype; ``control-flow`` an operation that only one
run has; ``mixing`` samples come together; ``place`` the result depends on where in the batch a sample
stands; ``recomputed`` a recomputation in the backward gave other numbers than the forward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """The operation at which two runs part.

    Attributes:
        kind: See :data:`DivergenceKind`.
        op: The operation.
        location: The user's line of it.
        module: Qualified name of the module in whose forward it runs.
        fact: What was measured, as a clause.
        error: Largest difference over largest magnitude; inf where only one is finite.
        share: Share of the elements that differ, 0 to 1.
        operands: What made the values that it read, in order: where they come from.
        reread: The view before it that took the samples out of their dimension.
        region: The line that entered the checkpointed region which runs it.
        index: What made the integers by which it takes elements of another sample.
        caller: The line that called the function in which it stands.
        instead: What the other run calls in the place of an operation that only one of them calls.
    """

    kind: DivergenceKind
    op: Op
    location: Location | None
    module: str
    fact: str
    error: float = 0.0
    share: float = 0.0
    operands: tuple[Op, ...] = ()
    reread: Reread | None = None
    region: Location | None = None
    index: Op | None = None
    caller: Location | None = None
    instead: Op | None = None


def _divergence(
    kind: DivergenceKind,
    trace: Trace,
    step: Step,
    fact: str,
    *,
    error: float = 0.0,
    share: float = 0.0,
) -> Divergence:
    return Divergence(
        kind=kind,
        op=step.op,
        location=step.op.location,
        module=step.op.module,
        fact=fact,
        error=error,
        share=share,
        operands=operands_of(trace, step),
        caller=next(iter(step.callers), None),
    )


def first_divergence(
    first: Trace,
    second: Trace,
    *,
    allowed: float = 0.0,
    align: Literal["none", "prefix", "suffix"] = "none",
) -> Divergence | None:
    """Find the first operation whose result differs between two runs.

    For runs that should agree throughout: another seed, a second pass, another device or dtype,
    padding appended (``align="prefix"``) or prepended (``"suffix"``).

    Args:
        first: The reference.
        second: The run in which one thing was changed.
        allowed: Largest difference over largest magnitude that counts as equal; at 0.0 results must
            agree bit by bit (NaN equals NaN) and have one dtype.
        align: Where shapes differ, compare the common beginning or end of each dimension; with
            ``none`` another shape is a divergence itself.
    """
    pairs = aligned(first, second)
    for a, b in pairs:
        if a is None or b is None:
            trace, step = (first, a) if a is not None else (second, b)
            assert step is not None
            which = "first" if a is not None else "second"
            found_at = _divergence(
                "control-flow", trace, step, f"only the {which} run calls {step.op.name}"
            )
            return replace(found_at, instead=_instead(pairs, first=a is None))
        if "empty" in a.op.name:
            continue  # what new memory holds is chance, and means nothing before it is written
        for place_a, place_b in zip(a.results, b.results, strict=True):
            one, two = first.values[place_a], second.values[place_b]
            found = _differs(one, two, allowed, align)
            if found is not None:
                kind, fact, size, share = found
                return _divergence(kind, first, a, f"{a.op.name} {fact}", error=size, share=share)
    return None


def _instead(pairs: Iterator[tuple[Step | None, Step | None]], *, first: bool) -> Op | None:
    """Return the next operation that only one of two runs calls, before both call the same again."""
    for a, b in pairs:
        one, other = (a, b) if first else (b, a)
        if one is not None:
            return one.op if other is None else None
    return None


def _differs(
    one: Snapshot, two: Snapshot, allowed: float, align: str
) -> tuple[DivergenceKind, str, float, float] | None:
    if one.shape != two.shape and (align == "none" or len(one.shape) != len(two.shape)):
        return "shape", f"gave {list(one.shape)} and {list(two.shape)}", 0.0, 1.0
    if allowed == 0.0 and one.dtype != two.dtype:
        return "shape", f"gave {one.dtype} and {two.dtype}", 0.0, 1.0
    one, two = _common(one, two, align)
    mask = changed(one, two)
    if mask is None or (isinstance(mask, bool) and not mask):
        return None
    if isinstance(mask, bool):
        return "value", f"gave other values of {list(one.shape)}", 0.0, 1.0
    if not bool(mask.any()):
        return None
    distance, largest = error(one, two)
    relative = distance / largest if largest else (distance and float("inf"))
    if relative <= allowed:
        return None
    count = int(mask.sum())
    fact = (
        f"differs in {count} of {mask.numel()} elements, by up to {distance:.3g} "
        f"(largest magnitude {largest:.3g})"
    )
    return "value", fact, relative, count / mask.numel()


def _common(one: Snapshot, two: Snapshot, align: str) -> tuple[Snapshot, Snapshot]:
    """Cut two values to the part that both shapes have."""
    if one.shape == two.shape or one.values is None or two.values is None:
        return one, two
    sizes = [min(a, b) for a, b in zip(one.shape, two.shape, strict=True)]
    cut = []
    for snapshot in (one, two):
        assert snapshot.values is not None
        values = snapshot.values
        for dim, size in enumerate(sizes):
            start = 0 if align == "prefix" else values.shape[dim] - size
            values = values.narrow(dim, start, size)
        cut.append(Snapshot(tuple(sizes), snapshot.dtype, values))
    return cut[0], cut[1]


class _Ownership:
    """Which samples each element of each value depends on: those whose perturbation changes it."""

    def __init__(self, base: Trace, perturbed: Mapping[int, Trace], allowed: float = 0.0) -> None:
        self.base = base
        self.samples = tuple(perturbed)
        self.masks: dict[int, dict[int, Tensor]] = {}
        for sample, trace in perturbed.items():
            for a, b in aligned(base, trace):
                if a is None or b is None:
                    continue
                pairs = zip((*a.operands, *a.results), (*b.operands, *b.results), strict=True)
                for place, other in pairs:
                    known = self.masks.setdefault(place, {})
                    if sample in known:
                        continue
                    mask = changed(base.values[place], trace.values[other], allowed)
                    if isinstance(mask, Tensor):
                        known[sample] = mask

    def owners(self, place: int) -> Tensor | None:
        """Count the samples that each element depends on, int64 of the value's shape, or None."""
        masks = list(self.masks.get(place, {}).values())
        if not masks:
            return None
        return torch.stack(masks).sum(0)

    def mixed(self, place: int) -> bool:
        """Say whether some element depends on two samples or more."""
        owners = self.owners(place)
        return owners is not None and bool((owners >= 2).any())

    def rows(self, size: int) -> Callable[[int], Rows | None]:
        """Return what says in which rows of a value the samples stand, of which there are ``size``."""

        def of(place: int) -> Rows | None:
            known = self.masks.get(place, {})
            return rows_of_labels(known, size, lambda labels, sample: labels == sample)

        return of


def first_mixing(
    base: Trace,
    perturbed: Mapping[int, Trace],
    size: int | None = None,
    *,
    allowed: float = 0.0,
) -> Divergence | None:
    """Find the operation at which samples of a batch come together.

    An element is owned by the samples whose perturbation changes it. The operation is the one whose
    result holds elements of two owners while no operand does, on the way to an output that does; so
    reshapes and transposes need no bookkeeping, and what a mask takes out again is not blamed.

    Args:
        base: The unperturbed run.
        perturbed: Per sample, the same run in which only that sample's contents were changed (same
            shapes, same seed). Two suffice where those two meet; all samples are surest.
        size: How many samples there are; tells a view that took them out of their rows before.
        allowed: Relative difference that is rounding and no change.

    Returns:
        The operation, or None where no element of the outputs has two owners.
    """
    ownership = _Ownership(base, perturbed, allowed)
    starts = [place for place in base.outputs if ownership.mixed(place)]
    if not base.outputs:
        starts = [p for step in base.steps for p in step.results if ownership.mixed(p)][:1]
    if not starts:
        return None if size is None else _scattered(base, ownership, size)
    step, place = origin(base, starts[0], ownership.mixed)
    if step is None:
        return None
    owners = ownership.owners(place)
    assert owners is not None
    count = int((owners >= 2).sum())
    most = int(owners.max())
    fact = (
        f"{step.op.name} gave {count} of {owners.numel()} elements that change with {most} different "
        f"samples; each element that it read changes with one at most"
    )
    found = _divergence("mixing", base, step, fact, share=count / owners.numel())
    index = made_index(base, step)
    if index is not None and index.location not in (None, step.op.location):
        found = replace(found, index=index, fact=f"{fact}; {index.name} made the index")
    if size is None or size < 2:
        return found

    rows = ownership.rows(size)
    view = find_reread(base, step, ownership.masks, rows, size, in_place=True)
    return replace(found, reread=view)


def first_hiding(
    base: Trace, perturbed: Mapping[int, Trace], *, allowed: float = 0.0
) -> Divergence | None:
    """Find the operation that takes out again what two positions (or samples) gave each other.

    Args:
        base: The unperturbed run.
        perturbed: As for :func:`first_mixing`.
        allowed: Relative difference that is rounding and no change.

    Returns:
        The first operation that reads elements of two owners and gives none, such as a mask before
        a softmax; views, which only choose elements, do not count.
    """
    ownership = _Ownership(base, perturbed, allowed)
    for step in base.steps:
        read = [place for place in step.operands if ownership.mixed(place)]
        if not read or step.op.name.rpartition(".")[2] in CHOOSING:
            continue
        if step.results and not any(map(ownership.mixed, step.results)):
            owners = ownership.owners(read[0])
            count = int((owners >= 2).sum()) if owners is not None else 0
            fact = (
                f"{step.op.name} reads {count} elements that change with two of these positions; "
                "no element of its result does"
            )
            return _divergence("mixing", base, step, fact)
    return None


def _scattered(base: Trace, ownership: _Ownership, size: int) -> Divergence | None:
    """Return the view after which outputs stand in no rows of one dimension, where nothing brings samples together."""
    for place in base.outputs:
        maker = base.makers.get(place)
        rows = ownership.rows(size)
        if size < 2 or maker is None or rows(place) is not None:
            continue
        reread = find_reread(base, maker, ownership.masks, rows, size)
        if reread is not None:
            return replace(_divergence("mixing", base, maker, reread.shown), reread=reread)
    return None


def first_place_dependence(
    base: Trace,
    permuted: Trace,
    *,
    allowed: float = 1e-5,
    perturbed: Mapping[int, Trace] | None = None,
    size: int = 0,
    order: Tensor | None = None,
) -> Divergence | None:
    """Find the operation whose result depends on where in the batch a sample stands, or an entry in its set.

    Where it does not, permuting the samples permutes the elements of every value, wherever reshapes
    and transposes have put them, so the sorted elements agree. (Sorting moves no element by more
    than the largest difference, so the bound is that of the values.)

    Args:
        base: The reference run.
        permuted: The run with the same samples in another order.
        allowed: Largest difference over largest magnitude that counts as equal. Other rows may take
            other code paths in a kernel, so not bit by bit.
        perturbed: Per entry, the run in which only its contents were changed: tells a view that
            took the entries out of their rows before.
        size: How many entries there are.
        order: The sample that stands at each place of ``permuted``: what first wrote to a mask by
            the place of a sample is then named, not what reads the mask.
    """
    for a, b in aligned(base, permuted):
        if a is None or b is None:
            continue
        for place_a, place_b in zip(a.results, b.results, strict=True):
            one, two = _in_order(base.values[place_a]), _in_order(permuted.values[place_b])
            if one is None or two is None or one.shape != two.shape:
                continue
            distance, largest = error(one, two)
            if distance > allowed * largest:
                fact = (
                    f"{a.op.name} gave other values when the samples changed places, not the same "
                    f"in another order: they differ by up to {distance:.3g} "
                    f"(largest magnitude {largest:.3g})"
                )
                gap = distance / largest if largest else float("inf")
                before, what = by_place(base, permuted, a, order)
                fact = f"{before.op.name} gave {what}; {fact}" if before is not None else fact
                found = _divergence("place", base, before or a, fact, error=gap)
                if not perturbed or size < 2:
                    return found
                ownership = _Ownership(base, perturbed)
                rows = ownership.rows(size)
                return replace(found, reread=find_reread(base, a, ownership.masks, rows, size))
    return None


def _in_order(snapshot: Snapshot) -> Snapshot | None:
    if snapshot.values is None or not snapshot.values.is_floating_point():
        return None  # indices of the entries change with their order
    values = snapshot.values.to(torch.float64).flatten().sort().values
    return Snapshot((values.numel(),), values.dtype, values)
