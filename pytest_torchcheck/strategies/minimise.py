"""Reduce a failing batch to the smallest one that still fails, without Hypothesis.

In the order a person would choose: sizes down to the bottom of their ranges, contiguous memory,
    zeros, then single elements.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..batches.batch import relayout
from ..batches.filling import followed
from ..batches.read import is_dense
from ..batches.recipe import kept, units
from ..lean import dataclass
from ..specs.shapes import SpecError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ..batches.batch import Batch
    from ..batches.source import BatchSource
    from ..specs.domains import Unit

FEW = 3
"""So many elements are a better answer than a constant tensor."""
_BOTTOM = 8
"""Sizes at the bottom of a range that are tried one by one: what fails at odd sizes fails at every second one."""
_THINNING = 100
"""Calls spent on leaving out pieces of a run; a failure that needs many elements is better shown by a constant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How long to search.

    Attributes:
        calls: Runs of the failing check.
        seconds: Wall time.
    """

    calls: int = 400
    seconds: float = 10.0


def minimise(
    source: BatchSource,
    fails: Callable[[Batch], bool],
    start: Batch,
    budget: Budget | int | None = None,
) -> Batch:
    """Reduce a failing batch.

    Args:
        source: Where the batch came from.
        fails: Whether a batch still fails in the same way. It gets a copy, which it may change.
        start: A batch that fails.
        budget: How long to search; a number is that of calls.

    Returns:
        The simplest batch found that fails; ``start`` itself if it does not fail again.
    """
    if budget is None or isinstance(budget, int):
        budget = Budget() if budget is None else Budget(calls=budget)
    search = _Search(source, fails, start, budget)
    if not search.accepts(start):
        return start
    for _ in range(4):  # a tensor that is zero but for one element can often be cut further
        before = search.best
        _sizes(search)
        _layout(search)
        _values(search)
        if search.spent or search.best is before:
            break
        search.fresh = False
    return search.best


class _Search:
    """The best batch so far, and what is left of the budget."""

    def __init__(
        self, source: BatchSource, fails: Callable[[Batch], bool], start: Batch, budget: Budget
    ) -> None:
        self.source = source
        self.fails = fails
        self.best = start
        self.calls = budget.calls
        self.until = time.monotonic() + budget.seconds
        self.fresh = True  # whether batches may be drawn anew: not once values are simple

    @property
    def spent(self) -> bool:
        return self.calls <= 0 or time.monotonic() > self.until

    def accepts(self, candidate: Batch | None) -> bool:
        """Whether a candidate fails as well; it is then the best one."""
        if candidate is None or self.spent:
            return False
        self.calls -= 1
        if not self.fails(candidate.clone()):
            return False
        self.best = candidate
        return True

    def at_sizes(self, sizes: dict[str, int]) -> bool:
        """Whether some batch of these sizes fails: a piece of the best one, or one that is drawn there."""
        return any(self.accepts(candidate) for candidate in self._of_sizes(sizes))

    def _of_sizes(self, sizes: dict[str, int]) -> Iterator[Batch | None]:
        layout = self.best.layout
        ranges = self.source.symbols
        kept_sizes = {
            name: size
            for name, size in self.best.sizes.items()
            if name not in ranges or ranges[name].relation is None
        }
        makers: list[Callable[[], Batch | None]] = [
            lambda: self.source.crop(self.best, sizes),
            lambda: self.source.crop(self.best, sizes, last=True),
        ]
        if self.fresh:
            makers.append(lambda: self.source.at(self.best.seed, **{**kept_sizes, **sizes}))
        for make in makers:
            try:
                made = make()
            except SpecError:  # a relation has no value at these sizes
                return
            yield made if made is None or layout == "contiguous" else relayout(made, layout)


def _sizes(search: _Search) -> None:
    ranges = search.source.widest()
    names = [name for name in search.best.sizes if name in ranges and not ranges[name].fixed]
    lows = {name: min(ranges[name].low, search.best.sizes[name]) for name in names}
    if all(search.best.sizes[name] == size for name, size in lows.items()) or search.at_sizes(lows):
        return
    changed = True
    while changed and not search.spent:
        changed = False
        for name in sorted(names, key=lambda name: -search.best.sizes.get(name, 0)):
            if name in search.best.sizes:  # an axis may have gone with the number of axes
                changed |= _lower(search, name, ranges[name].values)


def _lower(search: _Search, name: str, allowed: Sequence[int]) -> bool:
    """Lower one size as far as the batch fails; say whether that was possible."""
    smaller = [size for size in allowed if size < search.best.sizes[name]]
    for size in smaller[:_BOTTOM]:
        if search.at_sizes({name: size}):
            return True
    low, high = min(_BOTTOM, len(smaller)) - 1, len(smaller)
    while high - low > 1 and not search.spent:
        middle = (low + high) // 2
        if search.at_sizes({name: smaller[middle]}):
            high = middle
        else:
            low = middle
    found = high < len(smaller)
    for size in reversed(smaller[max(_BOTTOM, high - 4) : high - 1]):  # every second or fourth one
        found |= search.at_sizes({name: size})
    return found


def _layout(search: _Search) -> None:
    dense = [tensor for tensor in search.best.tensors().values() if is_dense(tensor)]
    if any(not tensor.is_contiguous() or tensor.storage_offset() for tensor in dense):
        search.accepts(relayout(search.best, "contiguous"))


def _values(search: _Search) -> None:
    specs = search.source.specs.values()
    laid_out = {name for spec in specs if spec.unit != "whole" for name in followed(spec)}
    tensors = search.best.tensors()
    for path in tensors:
        simplest = None if path in laid_out else search.source.simplest(search.best, path)
        drawn = tensors[path].detach()
        if simplest is None or not drawn.numel() or torch.equal(drawn, simplest):
            continue  # where other tensors are laid out by this one it stays as it is
        if not search.accepts(_with(search, path, simplest)):
            _elements(search, path, drawn, simplest)


def _elements(search: _Search, path: str, drawn: Tensor, simplest: Tensor) -> None:
    """Find the run of units that matters, then the units within it; a constant where many matter."""
    spec = search.source.specs.get(path)
    unit: Unit = "element" if spec is None or spec.values is None else spec.unit
    count = units(drawn, unit)

    def run(start: int, stop: int) -> Batch:
        return _with(search, path, kept(drawn, simplest, start, stop, unit))

    before = search.best
    start = count - _least(search, count, lambda n: run(count - n, count))
    stop = start + _least(search, count - start, lambda n: run(start, start + n))
    matter = list(range(start, stop))
    if len(matter) > 1:
        matter = _thin_out(search, path, drawn, simplest, matter, unit)
    if len(matter) > FEW and unit == "element":
        flat = drawn.reshape(-1)[matter]
        if bool((drawn == flat[0]).all()):  # a constant is simpler than a run of it
            search.best = before
            return
        for value in (flat[0], flat[flat.abs().argmax()]):
            if search.accepts(_with(search, path, value.expand(drawn.shape).clone())):
                return
    elif unit == "element" and drawn.is_floating_point():
        for place in matter:
            _round(search, path, place)


def _least(search: _Search, count: int, make: Callable[[int], Batch]) -> int:
    """The smallest number for which the batch fails, by bisection; ``count`` is known to fail, 0 not to."""
    low, high = 0, count
    while high - low > 1 and not search.spent:
        middle = (low + high) // 2
        if search.accepts(make(middle)):
            high = middle
        else:
            low = middle
    return high


def _thin_out(
    search: _Search, path: str, drawn: Tensor, simplest: Tensor, matter: list[int], unit: Unit
) -> list[int]:
    """Leave out pieces of a run, smaller and smaller ones, as long as the batch fails (delta debugging)."""
    until = search.calls - _THINNING
    size = len(matter) // 2
    while size:
        start = 0
        while start < len(matter):
            if search.spent or search.calls <= until:
                return matter
            rest = matter[:start] + matter[start + size :]
            if rest and search.accepts(_with(search, path, _only(drawn, simplest, rest, unit))):
                matter = rest
            else:
                start += size
        size //= 2
    return matter


def _only(drawn: Tensor, simplest: Tensor, places: list[int], unit: Unit) -> Tensor:
    made = simplest.detach().clone(memory_format=torch.contiguous_format)
    width = drawn.shape[-1] if unit == "row" and drawn.dim() else 1
    index = torch.tensor(places, device=made.device)
    made.view(-1, width)[index] = drawn.reshape(-1, width)[index]
    return made


def _round(search: _Search, path: str, place: int) -> None:
    """Try rounder numbers for one element."""
    now = search.best.tensors()[path].detach()
    value = now.reshape(-1)[place].item()
    if not math.isfinite(value) or value == round(value):
        return
    for rounder in (math.copysign(1.0, value), float(round(value)), round(value, 1)):
        made = now.clone(memory_format=torch.contiguous_format)
        made.view(-1)[place] = rounder
        if rounder != 0 and search.accepts(_with(search, path, made)):
            return


def _with(search: _Search, path: str, value: Tensor) -> Batch:
    """The best batch with another tensor at a path, and what follows from it."""

    def change(where: str, leaf: Any) -> Any:
        return value.detach().clone().requires_grad_(leaf.requires_grad) if where == path else leaf

    return search.source.consistent(search.best.map(change))
