"""Edge-first batches without Hypothesis: what a check runs over, the same ones for the same seed."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING

from ..batches.batch import relayout
from ..specs.shapes import SpecError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ..batches.batch import Batch
    from ..batches.describe import Layout
    from ..batches.source import BatchSource
    from ..specs.sizes import SizeRange

MAX_ELEMENTS = 1 << 22
"""Sizes at which a batch has more elements than this (and than the base batch) are left out: they cost too much."""

SWEPT = 16
"""How many values of each size a sweep tries."""
_SWEEP_COST = 4
"""A sweep has at most so many times the elements of the base batch, all its batches together."""

Sizes = dict[str, int]


def examples(
    source: BatchSource,
    count: int,
    seed: int = 0,
    *,
    layouts: Sequence[Layout] = ("contiguous",),
    max_elements: int = MAX_ELEMENTS,
    targets: bool = True,
) -> Iterator[Batch]:
    """Iterate over batches of other sizes, the telling ones first.

    In order: every size at its smallest; every size odd, prime and different; every size at its largest; each
    size alone at its smallest; as many samples as another dimension has entries; each size alone at its largest,
    at 1, one less and one more than is typical; then random ones. Instead of its largest, the batch's size alone
    takes its largest prime: what takes samples in groups has a rest there.

    Args:
        source: Where batches come from; sizes that its real targets do not allow are left out.
        count: How many at most. Fewer come where there are fewer sizes.
        seed: Of the values, and of the random sizes.
        layouts: How inputs lie in memory: the first one in the first three batches, then in turn.
        max_elements: Larger batches are left out.
        targets: Whether batches need targets; else there are none where a real target's shape is not known.
    """
    made = 0
    for number, sizes in enumerate(assignments(source, seed, max_elements=max_elements)):
        if made >= count:
            return
        batch = source.at(seed + number, **sizes)
        if batch is None and not targets:
            batch = source.of_inputs.at(seed + number, **sizes)
        if batch is None:
            continue
        layout = layouts[made % len(layouts)] if made >= 3 else layouts[0]
        made += 1
        yield batch if layout == "contiguous" else relayout(batch, layout)


def sweep(source: BatchSource, seed: int = 0) -> Iterator[Batch]:
    """Iterate over batches of as few samples as may be, in which each size takes values from all of its range.

    All sizes change at once and in other orders, so that equal ones seldom meet. What fails at one size in
    twenty, as a rounded quotient does, is met by none of the edges.

    Args:
        source: Where batches come from; their targets are left out.
        seed: Of the values.
    """
    inputs = source.of_inputs
    free = {
        name: span.values
        for name, span in inputs.widest().items()
        if not span.fixed and len(span) > 2 and name.isidentifier()
    }
    symbol = inputs.batch_symbol
    free.pop(symbol or "", None)
    fewest = {symbol: inputs.symbols[symbol].low} if symbol in inputs.symbols else {}
    left = _SWEEP_COST * (elements(inputs, _real(inputs)) or 0)
    count = min(SWEPT, max((len(values) for values in free.values()), default=0))
    for number in range(count):
        sizes = {
            name: values[_spread(number, place, count) * (len(values) - 1) // max(count - 1, 1)]
            for place, (name, values) in enumerate(free.items())
        }
        sizes.update((name, max(size, 1)) for name, size in fewest.items() if name is not None)
        left -= elements(inputs, sizes) or 0
        if left < 0:
            return
        batch = inputs.at(seed + number, **sizes)
        if batch is not None:
            yield batch


def largest(source: BatchSource, base: Batch, room: int = 0) -> Batch | None:
    """Return a batch of as few samples as may be, in which every other size is the largest.

    Args:
        source: Where batches come from; their targets are left out.
        base: The base batch.
        room: How far below the largest sizes to stay.

    Returns:
        The batch; None where no size is larger than in the base batch, or where it is too large.
    """
    inputs, symbol = source.of_inputs, source.batch_symbol
    sizes = {
        name: max((v for v in span.values if v <= span.top - room), default=span.low)
        for name, span in inputs.widest().items()
        if not span.fixed and name.isidentifier()
    }
    if symbol in sizes:
        sizes[symbol] = max(inputs.symbols[symbol].low, 1)
    larger = any(size > base.sizes.get(name, size) for name, size in sizes.items())
    if not larger or (elements(inputs, sizes) or MAX_ELEMENTS + 1) > MAX_ELEMENTS:
        return None
    return inputs.at(base.seed, **sizes)


def _spread(number: int, place: int, count: int) -> int:
    """Return which of ``count`` values the size at a place has: each once, every second size in descending order."""
    at = (number + place // 2 * (count // 3 + 1)) % count
    return count - 1 - at if place % 2 else at


def assignments(
    source: BatchSource, seed: int = 0, *, max_elements: int = MAX_ELEMENTS
) -> Iterator[Sizes]:
    """The sizes behind `examples`, each once; random ones end when no new one is found."""
    free = {name: span for name, span in source.widest().items() if not span.fixed}
    base = {name: size for name, size in source.complete(_real(source)).items() if name in free}
    limit = max(max_elements, elements(source, base) or 0)
    seen: set[tuple[tuple[str, int], ...]] = set()
    random_sizes = random.Random(seed)
    misses = 0
    entries = sorted({size for shape in _shapes(source, base) or [] for size in shape if size > 1})
    for sizes in _ordered(free, base, random_sizes, source.batch_symbol, entries):
        key = tuple(sorted(sizes.items()))
        size = elements(source, sizes)
        if key in seen or size is None or size > limit:
            misses += 1
            if misses > 50 + len(seen):
                return
            continue
        seen.add(key)
        yield sizes


def elements(source: BatchSource, sizes: Mapping[str, int]) -> int | None:
    """How many elements a batch has at these sizes, by its specs; None where a relation has no value there."""
    shapes = _shapes(source, sizes)
    return None if shapes is None else sum(map(math.prod, shapes))


def _shapes(source: BatchSource, sizes: Mapping[str, int]) -> list[tuple[int, ...]] | None:
    """The shapes of a batch at these sizes, by its specs; None where a relation has no value there."""
    try:
        complete = source.complete({**_real(source), **sizes})
        return [s.shape.resolve(complete) for s in source.specs.values() if s.shape is not None]
    except SpecError:
        return None


def _real(source: BatchSource) -> Sizes:
    """The real sizes that do not follow from others."""
    if not source.has_real:
        return {}
    related = {name for name, span in source.symbols.items() if span.relation is not None}
    return {name: size for name, size in source.real().sizes.items() if name not in related}


def _ordered(
    free: Mapping[str, SizeRange],
    base: Sizes,
    rng: random.Random,
    batch: str | None,
    entries: Sequence[int] = (),
) -> Iterator[Sizes]:
    lows = {name: span.low for name, span in free.items()}
    tops = {name: span.top for name, span in free.items()}
    yield lows
    yield _odd(free)
    yield tops
    if not free:
        return
    for name in free:
        yield {**base, name: free[name].low}
    if batch is not None and batch in free:
        for size in [n for n in entries if n in free[batch] and n != base.get(batch)][:2]:
            yield {**base, batch: size}
    for name in free:
        yield {**base, name: _large_prime(free[name]) if name == batch else free[name].top}
    for name in free:
        yield {**lows, name: free[name].top}
    yield base
    for other in (1, -1, 2, -2):
        for name, span in free.items():
            at = span.values.index(base[name]) if base.get(name) in span else 0
            if 0 <= at + other < len(span):
                yield {**base, name: span.values[at + other]}
    for name in free:
        if 1 in free[name]:
            yield {**base, name: 1}
    while True:
        yield {name: rng.choice(span.values) for name, span in free.items()}


def _odd(free: Mapping[str, SizeRange]) -> Sizes:
    """Odd, prime and different sizes, near the middle of small ranges and near 20 of large ones."""
    chosen: Sizes = {}
    for name, span in free.items():
        target = min((span.low + span.top) // 2, max(span.low + 5, 20))
        ranked = sorted(
            (size for size in span.values if size <= 4 * target + 8),
            key=lambda size: (
                size % 2 == 0,
                size in chosen.values(),
                not _prime(size),
                size <= 1,
                abs(size - target),
            ),
        )
        chosen[name] = ranked[0] if ranked else span.low
    return chosen


def _large_prime(span: SizeRange) -> int:
    """The largest prime among allowed sizes; the largest size where none is."""
    return next((size for size in reversed(span.values) if _prime(size)), span.top)


def _prime(number: int) -> bool:
    return number > 1 and all(number % divisor for divisor in range(2, math.isqrt(number) + 1))
