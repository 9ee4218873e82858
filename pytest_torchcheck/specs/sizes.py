"""Sizes: what every symbol of a shape may be."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping

from ..lean import dataclass
from .shape_parsing import parse_relation
from .shapes import Expr, SpecError

DEFAULT_HIGH = 16
"""Largest size of a symbol for which no range was declared."""

COMFORTABLE = 17
"""A model is first run at sizes near this: odd and prime, large enough to be typical, and cheap."""
COMFORTABLE_BATCH = 5

Size = int | tuple[int, int] | tuple[int, int, int] | str


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeRange:
    """The sizes that one symbol may have.

    Attributes:
        low, high: Inclusive bounds.
        step: Distance between allowed sizes, counted from ``low``.
        relation: Set where the size follows from other symbols; the bounds are then unused.
        declared: Whether the user gave it, rather than a default.
    """

    low: int
    high: int
    step: int = 1
    relation: Expr | None = None
    declared: bool = True

    def __post_init__(self) -> None:
        if self.high < self.low or self.step < 1 or self.low < 0:
            raise SpecError(f"no sizes from {self.low} to {self.high} by {self.step}")

    def __iter__(self) -> Iterator[int]:
        return iter(self.values)

    def __len__(self) -> int:
        return len(self.values)

    def __contains__(self, size: object) -> bool:
        return size in self.values

    @property
    def values(self) -> range:
        """Every allowed size, ascending."""
        return range(self.low, self.high + 1, self.step)

    @property
    def top(self) -> int:
        """The largest size that can be reached by the step."""
        return self.values[-1]

    @property
    def fixed(self) -> bool:
        """Whether there is nothing to choose."""
        return self.relation is not None or len(self.values) == 1

    def nearest(self, size: int) -> int:
        """The allowed size that is closest to ``size``, the smaller of two."""
        index = max(0, min(len(self.values) - 1, (size - self.low) // self.step))
        around = self.values[index : index + 2]
        return min(around, key=lambda value: abs(value - size))

    def __str__(self) -> str:
        if self.relation is not None:
            return str(self.relation)
        if self.low == self.high:
            return str(self.low)
        return f"{self.low}..{self.high}" + (f" by {self.step}" if self.step > 1 else "")


def comfortable(
    span: SizeRange, *, batch: bool = False, rank: bool = False, taken: Container[int] = ()
) -> int:
    """A typical size at which steps stay cheap: no edge of the range where there is room.

    Args:
        span: What is allowed.
        batch: Whether it is the batch's size, of which a few samples are enough.
        rank: Whether it is a number of axes, of which one is typical.
        taken: Sizes of other symbols; another one is preferred, so that exchanged axes show.
    """
    values = span.values
    if len(values) <= 2:
        return span.top
    if rank:
        return span.nearest(1)
    target = span.nearest(COMFORTABLE_BATCH if batch else COMFORTABLE)
    best = max(min(span.nearest((span.low + span.top) // 2), target), values[1])
    if best not in taken:
        return best
    at = values.index(best)
    around = [
        values[i]
        for i in (at + 1, at - 1, at + 2, at - 2, at + 3, at - 3)
        if 0 < i < len(values) - 1
    ]
    return next((size for size in around if size not in taken), best)


def parse_sizes(sizes: Mapping[str, Size] | None) -> dict[str, SizeRange]:
    """Read the field ``sizes``.

    Args:
        sizes: Per symbol a number, ``(low, high)`` inclusive, ``(low, high, step)``, or a relation to
            other symbols as a string, such as ``"H"`` or ``"2*H"``.

    Raises:
        SpecError: Naming the symbol, the value, and what is allowed.
    """
    if sizes is None:
        return {}
    if not isinstance(sizes, Mapping):
        raise SpecError(f"sizes must be a dict such as {{'B': (2, 8)}}, not {sizes!r}")
    return {symbol: _size_range(symbol, value) for symbol, value in sizes.items()}


def _size_range(symbol: object, value: object) -> SizeRange:
    allowed = "a number, (low, high) inclusive, (low, high, step), or a relation such as '2*H'"

    def wrong(why: str) -> SpecError:
        return SpecError(f"sizes[{symbol!r}] = {value!r}: {why}; allowed: {allowed}")

    if not isinstance(symbol, str) or not symbol:
        raise SpecError(f"sizes: {symbol!r} is not the name of a symbol")
    if isinstance(value, SizeRange):
        return value
    if isinstance(value, str):
        relation = parse_relation(value, field=f"sizes[{symbol!r}]")
        if symbol in relation.symbols():
            raise wrong("a size cannot follow from itself")
        return SizeRange(low=0, high=0, relation=relation)
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 0:
            raise wrong("a size is not negative")
        return SizeRange(low=value, high=value)
    if not isinstance(value, (tuple, list)) or len(value) not in (2, 3):
        raise wrong("not a size")
    if not all(isinstance(part, int) and not isinstance(part, bool) for part in value):
        raise wrong("bounds are whole numbers")
    low, high, step = (*value, 1)[:3]
    if low < 0:
        raise wrong("a size is not negative")
    if high < low:
        raise wrong(f"the range is empty, {high} is less than {low}")
    if step < 1:
        raise wrong("a step is at least 1")
    return SizeRange(low=low, high=high, step=step)


def settle(free: Mapping[str, int], ranges: Mapping[str, SizeRange]) -> dict[str, int]:
    """Add the sizes that follow from relations to those that were chosen.

    Raises:
        SpecError: Relations go in a circle, or name a symbol that has no size.
    """
    sizes = dict(free)
    todo = {name: span.relation for name, span in ranges.items() if span.relation is not None}
    while todo:
        ready = {
            name: relation
            for name, relation in todo.items()
            if all(symbol in sizes for symbol in relation.symbols() if symbol not in todo)
            and not any(symbol in todo for symbol in relation.symbols())
        }
        if not ready:
            name, relation = next(iter(todo.items()))
            raise SpecError(
                f"sizes[{name!r}] = {str(relation)!r} cannot be worked out from {sorted(sizes) or 'nothing'}"
            )
        for name, relation in ready.items():
            sizes[name] = relation.value_at(sizes)
            del todo[name]
    return sizes
