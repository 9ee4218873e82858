"""The operation through which the number of padded positions reaches the values at the real ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch

from ...lean import dataclass
from ..recorded.operations import aligned, differing
from .spread import origin

if TYPE_CHECKING:
    from torch import Tensor

    from ...findings import Location
    from ..recorded.operations import Snapshot, Step, Trace
    from ..recorded.watch import Op

Side = Literal["right", "left"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengthened:
    """The operation whose result depends on how much padding there is, while what it read does not.

    Attributes:
        op: The operation.
        again: The same in the longer run.
        location: The user's line of it.
        module: Qualified name of the module in whose forward it runs.
        fact: What was measured, as a clause.
        numbers: The number that it was given in the shorter and in the longer run, where nothing
            else that it read differs: the length itself, or what was computed of it.
        filled: What stands at the added positions of what it read, where that is one number.
        filler: The operation that put it there.
        called: The line that called the function in which that operation stands.
        emptied: The operation before it that had set the padded positions to 0.
        maker: The operation that made what it read, values at the added positions included; None
            where that is one number.
        counted: What one position of the shorter run gets in both, where it reads nothing and
            numbers the positions, padding included.
    """

    op: Op
    again: Op
    location: Location | None
    module: str
    fact: str
    numbers: tuple[float, float] | None
    filled: float | None = None
    filler: Op | None = None
    called: Location | None = None
    emptied: Op | None = None
    maker: Op | None = None
    counted: tuple[int, int] | None = None


def first_lengthening(
    base: Trace,
    longer: Trace,
    *,
    length: int,
    extra: int,
    side: Side = "right",
    allowed: float = 0.0,
    real: Tensor | None = None,
) -> Lengthened | None:
    """Find the operation through which the amount of padding reaches the real positions; None where no output differs.

    Values are compared where both runs have them: at the positions of the shorter run. The
    operation is the first, on the way to an output that differs, whose result differs there while
    all that it read agrees.

    Args:
        base: The run.
        longer: The same with padded positions appended (for ``side="left"``: put before).
        length, extra: Number of positions of ``base``, and how many more there are in ``longer``.
        side: Where the padding stands.
        allowed: Relative difference that is rounding: more zeros are summed in another order.
        real: bool [samples, positions] of ``base``: which positions are no padding; all by default.
    """
    compare = _Comparison(length, extra, side, allowed, real)
    pairs, partners = _matched(base, longer)
    known: dict[int, bool] = {}

    def differs(place: int) -> bool:
        if place not in known:
            other = pairs.get(place)
            mask = None if other is None else compare(base.values[place], longer.values[other])
            known[place] = mask is not None and bool(mask.any())
        return known[place]

    if (start := next(filter(differs, base.outputs), None)) is None:
        return None
    step, place = origin(base, start, differs)
    mask = compare(*(both := (base.values[place], longer.values[pairs[place]])))
    again = partners.get(id(step))  # none where one of the runs lacks this call
    if step is None or mask is None or again is None:
        return None
    filled, filler = _filled(longer, again, length, extra, side)
    numbers = _numbers(base, longer, step, again)
    return Lengthened(
        op=step.op,
        again=again.op,
        location=step.op.location,
        module=step.op.module,
        fact=_said(step, mask, extra, numbers),
        numbers=numbers,
        filled=filled,
        filler=filler.op if filler else None,
        called=next(iter(filler.callers if filler else ()), None),
        emptied=_emptied(longer, filler, length, extra, side) if filled else None,
        maker=_maker(longer, again, length + extra) if filler is None else None,
        counted=None if step.operands else compare.counted(*both),
    )


def _said(step: Step, mask: torch.Tensor, extra: int, numbers: tuple[float, float] | None) -> str:
    """Say what the operation gives, and what it read."""
    fact = (
        f"{step.op.name} gave other values in {int(mask.sum())} of {mask.numel()} elements of "
        f"the real positions when {extra} padded ones were added"
    )
    if numbers is not None:
        fact += f": it was given {numbers[0]:.4g} and then {numbers[1]:.4g}, and tensors that agree"
    elif step.operands:
        fact += "; what it read of the real positions agrees"
    return fact


def _matched(base: Trace, longer: Trace) -> tuple[dict[int, int], dict[int, Step]]:
    """Return which value and which step of the longer run each of the shorter run's is."""
    pairs: dict[int, int] = {}
    partners: dict[int, Step] = {}
    for a, b in aligned(base, longer):
        if a is not None and b is not None:
            partners[id(a)] = b
            both = zip((*a.operands, *a.results), (*b.operands, *b.results), strict=True)
            for place, other in both:
                pairs.setdefault(place, other)
    return pairs, partners


_VIEWS = frozenset(
    {
        "transpose",
        "permute",
        "contiguous",
        "clone",
        "unsqueeze",
        "squeeze",
        "mT",
        "T",
        "swapaxes",
        "movedim",
        "index_select",
    }
)
"""Operations that move values and compute none, without the underscores around their names."""
_NEAR = 8
_COMPUTES = frozenset({"add", "sub", "rsub", "mul", "div", "divide", "truediv", "rtruediv", "pow"})
"""Operations whose numbers are values, not sizes."""


def _filled(
    longer: Trace, step: Step, length: int, extra: int, side: Side
) -> tuple[float | None, Step | None]:
    """Return the one number that stands at the added positions of what a step reads, and what put it there."""
    for place in step.operands:
        added = _added(longer, place, length, extra, side)
        if added is None or not bool((added == added.flatten()[0]).all()):
            continue
        maker = longer.makers.get(place)
        while maker is not None and maker.op.name.rpartition(".")[2] in _VIEWS:
            maker = longer.makers.get(maker.operands[0])
        if maker is not None:
            return float(added.flatten()[0]) + 0.0, maker  # no -0
    return None, None


def _added(trace: Trace, place: int, length: int, extra: int, side: Side) -> Tensor | None:
    """Return what a floating-point value holds at the added positions, where one dimension has them."""
    values = trace.values[place].values
    if values is None or not values.is_floating_point():
        return None
    dims = [d for d in range(values.ndim) if values.shape[d] == length + extra]
    if len(dims) != 1:
        return None
    return values.narrow(dims[0], length if side == "right" else 0, extra)


def _emptied(longer: Trace, filler: Step | None, length: int, extra: int, side: Side) -> Op | None:
    """Return the operation that set the added positions to 0, where what follows it, up to ``filler``, undoes that."""
    step = filler
    for _ in range(_NEAR):
        if step is None:
            return None
        held = [(place, _added(longer, place, length, extra, side)) for place in step.operands]
        known = [(place, added) for place, added in held if added is not None]
        given = _added(longer, step.results[0], length, extra, side) if step.results else None
        if any(bool((added != added.flatten()[0]).any()) for _, added in known):
            return step.op if given is not None and not bool(given.any()) else None
        step = longer.makers.get(known[0][0]) if known else None
    return None


def _maker(longer: Trace, step: Step, size: int) -> Op | None:
    """Return the operation that made the first tensor with all positions that a step reads, behind views."""
    for place in step.operands:
        values = longer.values[place].values
        maker = longer.makers.get(place)
        if values is None or maker is None or size not in values.shape:
            continue
        while maker is not None and maker.op.name.rpartition(".")[2] in _VIEWS:
            maker = longer.makers.get(maker.operands[0])
        return maker.op if maker is not None else None
    return None


def computes(op: Op) -> bool:
    """Say whether the numbers that an operation is given are values, not sizes."""
    return op.name.rpartition(".")[2].strip("_").removeprefix("true_") in _COMPUTES


def _numbers(base: Trace, longer: Trace, one: Step, two: Step) -> tuple[float, float] | None:
    """Return the one number that differs between two calls whose tensors have the same shapes, or that compute with it."""
    pairs = zip((*one.operands, *one.results), (*two.operands, *two.results), strict=True)
    if not computes(one.op) and any(
        base.values[a].shape != longer.values[b].shape for a, b in pairs
    ):
        return None  # it may be a size
    if len(one.numbers) != len(two.numbers):
        return None
    unlike = {(a, b) for a, b in zip(one.numbers, two.numbers, strict=True) if a != b}
    return unlike.pop() if len(unlike) == 1 else None


@dataclass(frozen=True, slots=True)
class _Comparison:
    """Says which elements differ at the real positions of two values of which one has more positions."""

    length: int
    extra: int
    side: Side
    allowed: float
    real: Tensor | None

    def __call__(self, one: Snapshot, two: Snapshot) -> Tensor | None:
        """Return where they differ, bool of the part that both have; None where they cannot be compared."""
        if one.values is None or two.values is None or one.values.ndim != two.values.ndim:
            return None
        found = None
        for inner in (
            False,
            True,
        ):  # positions that are merged with samples: in blocks, or again and again
            a, b = self._common(one.values, two.values, inner=inner)
            mask = differing(a, b, self.allowed)
            mask = mask & self._kept(mask)
            if not bool(mask.any()):
                return mask
            found = mask if found is None else found
        return found

    def counted(self, one: Snapshot, two: Snapshot) -> tuple[int, int] | None:
        """Return two numbers of one position where every position has a number, and all move by the added ones."""
        if one.values is None or two.values is None or one.shape != (self.length,):
            return None
        a, b = self._common(one.values, two.values, inner=False)
        if a.shape != b.shape or not bool(((b - a).abs() == self.extra).all()):
            return None
        at = 0 if self.side == "right" else -1  # real, whatever else is padded
        return int(a[at]), int(b[at])

    def _common(self, one: Tensor, two: Tensor, *, inner: bool) -> tuple[Tensor, Tensor]:
        short, long = self.length, self.length + self.extra
        for dim in reversed(range(one.ndim)):
            a, b = one.shape[dim], two.shape[dim]
            if a == b:
                continue
            axis = dim
            if a > short and a % short == 0 and b == a // short * long:
                count = a // short
                one = one.unflatten(dim, (short, count) if inner else (count, short))
                two = two.unflatten(dim, (long, count) if inner else (count, long))
                axis, a, b = dim if inner else dim + 1, short, long
            size = min(a, b)
            one, two = (
                each.narrow(axis, 0 if self.side == "right" else each.shape[axis] - size, size)
                for each in (one, two)
            )
        return one, two

    def _kept(self, mask: Tensor) -> Tensor:
        """Return which elements stand at real positions of their sample, broadcast to a value."""
        real = self.real
        kept = torch.ones((), dtype=torch.bool, device=mask.device)
        if real is None or real.shape[0] == self.length:
            return kept
        samples = [d for d in range(mask.ndim) if mask.shape[d] == real.shape[0]]
        if len(samples) != 1:
            return kept
        for dim in range(mask.ndim):
            if mask.shape[dim] == self.length:
                turned = real if samples[0] < dim else real.T
                shape = [1] * mask.ndim
                shape[samples[0]], shape[dim] = real.shape
                kept = kept & turned.reshape(shape).to(mask.device)
        return kept
