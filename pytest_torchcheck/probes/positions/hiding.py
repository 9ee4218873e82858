"""A mask of attention scores that does not hide: it leaves weight, lies on the wrong axis, or comes late."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from ...lean import dataclass
from ..recorded.watch import Watch, name_of, tensors_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from torch import nn

    from ...findings import Location
    from ..recorded.operations import Step, Trace
    from ..recorded.watch import Op

_FAR = 32
"""How many operations to go back from the one that reads the weights."""
_NEGLIGIBLE = 1e-9
"""Share of a softmax's weight that counts as none (CHECKS R2: what rounding explains in float64)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hiding:
    """A mask between scores and the weights made of them, that lets through what it should hide.

    Attributes:
        kind: ``weak`` where what it fills in leaves weight at the hidden positions; ``opposite``
            where it hides the others instead; ``late`` where it comes after the softmax, which has
            normalised over them already; ``partly`` where it hides a part of them; ``across`` where it
            hides them along another dimension than that of the softmax.
        op: The operation that applies it.
        mask: The operation that made the mask, where one did.
        value: The number that it fills in, adds or multiplies by.
        low: Lowest of the scores that it leaves.
        high: Highest of them.
        weight: Largest share of a softmax's weight that hidden positions get.
        numbers: Of ``partly``, how many entries of a sample it leaves, and of how many; of ``across``, along
            which dimension it hides, and which is that of the softmax.
    """

    kind: Literal["weak", "opposite", "late", "partly", "across"]
    op: Op
    mask: Op | None
    value: float
    low: float
    high: float
    weight: float
    numbers: tuple[int, int] = (0, 0)


def find_hiding(
    trace: Trace, op: Op, *, kept: int, length: int, side: Literal["right", "left"] = "right"
) -> Hiding | None:
    """Find the mask that should keep positions from an operation, and does not.

    Args:
        trace: The run.
        op: The operation at which hidden positions were first seen to count.
        kept: How many positions, at the beginning (for ``side="left"``: at the end), must not
            depend on the others.
        length: Number of positions.
        side: Where those others stand.

    Returns:
        The mask; None where there is none between the scores and that operation, or where it is right.
    """
    step = next((step for step in trace.steps if step.op is op), None)
    if step is None:
        return None
    hidden = (
        torch.arange(length) >= kept if side == "right" else torch.arange(length) < length - kept
    )
    for softmax in _back(trace, step, _is_softmax):
        region = _region(trace, softmax, hidden)
        if region is None:
            continue
        dim, columns, rows = region
        for filling in _back(trace, softmax, lambda s: _filled(trace, s) is not None, passing=True):
            found = _judged(trace, softmax, filling, dim, columns, rows)
            if found is not None:
                return found
        if softmax is step:
            return _late(trace, softmax, columns & rows)
    return None


def _is_softmax(step: Step) -> bool:
    return _bare(step) in ("softmax", "log_softmax")


def _bare(step: Step) -> str:
    return step.op.name.rpartition(".")[2].strip("_").removeprefix("true_")


_PASSING = frozenset(
    {"softmax", "log_softmax", "add", "radd", "iadd", "sub", "mul", "rmul", "imul", "div", "truediv", "view", "reshape", "unflatten",
     "flatten", "transpose", "permute", "contiguous", "unsqueeze", "squeeze", "expand", "to", "float", "double", "half", "type_as",
     "clone", "dropout", "clamp", "tanh", "leaky_relu", "masked_fill", "where", "setitem", "getitem", "movedim", "bfloat16"}
)  # fmt: skip
"""What may stand between scores and their softmax, without the underscores around their names."""


def _back(
    trace: Trace, start: Step, wanted: Callable[[Step], bool], *, passing: bool = False
) -> Iterator[Step]:
    """Yield the nearest steps at or before a step that are wanted, first found first."""
    pending, seen = [start], {id(start)}
    while pending and len(seen) <= _FAR:
        step = pending.pop(0)
        if wanted(step) and not (passing and step is start):
            yield step
        for place in step.operands:
            maker = trace.makers.get(place)
            if maker is None or id(maker) in seen or (passing and _bare(maker) not in _PASSING):
                continue
            seen.add(id(maker))
            pending.append(maker)


def _region(trace: Trace, softmax: Step, hidden: Tensor) -> tuple[int, Tensor, Tensor] | None:
    """Return the dimension of a softmax over positions, which of its entries are hidden, and which rows must not see them."""
    weights = trace.values[softmax.results[0]].values
    if weights is None:
        return None
    if _bare(softmax) == "log_softmax":
        weights = weights.exp()
    length, hidden = len(hidden), hidden.to(weights.device)
    for dim in reversed(range(weights.ndim)):
        if weights.shape[dim] != length or not bool(((weights.sum(dim) - 1).abs() < 1e-3).all()):
            continue
        columns = _along(hidden, dim, weights.ndim).expand(weights.shape)
        rows = torch.ones_like(columns)
        for other in range(weights.ndim):
            if other != dim and weights.shape[other] == length and weights.ndim > 2:
                rows = rows & _along(~hidden, other, weights.ndim)
        return dim, columns, rows
    return None


def _along(mask: Tensor, dim: int, ndim: int) -> Tensor:
    shape = [1] * ndim
    shape[dim] = len(mask)
    return mask.view(shape)


def _filled(trace: Trace, step: Step) -> tuple[Tensor, int, float] | None:
    """Return where an operation fills in, adds or multiplies by one number, the place of the mask, and the number."""
    if not step.results:
        return None
    made = trace.values[step.results[-1]].values
    if made is None or not made.is_floating_point():
        return None
    name = _bare(step)
    for place in step.operands:
        values = trace.values[place].values
        if values is None or values.ndim == 0 or place in step.results:
            continue
        try:
            spread = values.expand(made.shape)
        except RuntimeError:
            continue
        where = None
        if name in ("masked_fill", "where", "setitem") and values.dtype == torch.bool:
            where = next((w for w in (spread, ~spread) if _single(made[w])), None)
            number = float(made[where].flatten()[0]) if where is not None else 0.0
        elif name in ("mul", "rmul", "imul") and bool(((values == 0) | (values == 1)).all()):
            where, number = spread == 0, 0.0
        elif name in ("add", "radd", "iadd", "sub") and values.is_floating_point():
            other = values[values != 0]
            if _single(other) and other.numel() < values.numel():
                where, number = spread != 0, float(other[0])
        if where is not None and bool(where.any()) and not bool(where.all()):
            return where, place, number
    return None


def _single(values: Tensor) -> bool:
    return values.numel() > 0 and bool((values == values.flatten()[0]).all())


def _judged(
    trace: Trace, softmax: Step, filling: Step, dim: int, columns: Tensor, rows: Tensor
) -> Hiding | None:
    """Say what is wrong with a mask before a softmax, or None where nothing is or it is about something else."""
    found = _filled(trace, filling)
    weights = trace.values[softmax.results[0]].values
    scores = trace.values[filling.results[-1]].values
    if found is None or weights is None or scores is None or scores.shape != weights.shape:
        return None
    where, place, number = found
    if _bare(softmax) == "log_softmax":
        weights = weights.exp()
    live = rows & ~where.all(
        dim, keepdim=True
    )  # a row of which nothing is left spreads its weight anyhow
    region = columns & live
    if not bool(region.any()):
        return None
    left = scores[live & ~where]
    left = left[left.isfinite()]
    if not left.numel():
        return None
    kind: Literal["weak", "opposite", "partly", "across"] = "weak"
    weight, numbers = float((weights * (region & ~where)).sum(dim).max()), (0, 0)
    queries = [d for d in range(where.ndim) if d != dim and where.shape[d] == where.shape[dim]]
    if bool(where[region].all()):
        weight = float((weights * region).sum(dim).max())
    elif not bool(where[region].any()):
        others = ~columns & live
        emptied = float((weights * (where & others)).sum(dim).max())
        if _is_other(where[others], columns, dim):
            return None
        kind = "opposite"
        if float(where[others].double().mean()) < _MOST or emptied > _SEEN:
            turned = [d for d in queries if bool(where[(columns & rows).transpose(dim, d)].all())]
            if len(turned) != 1:
                return None
            kind, numbers = "across", (turned[0] - where.ndim, dim - where.ndim)
    elif len(queries) == 1 and bool((where != where.narrow(queries[0], 0, 1)).any()):
        kind = "partly"
        one = tuple(slice(None) if d in (dim, *queries) else 0 for d in range(where.ndim))
        numbers = int((region & ~where)[one].sum()), int(region[one].sum())
    else:
        return None
    if weight <= _NEGLIGIBLE:
        return None
    maker = trace.makers.get(place)
    return Hiding(
        kind=kind,
        op=filling.op,
        mask=maker.op if maker is not None else None,
        value=number,
        low=float(left.min()),
        high=float(left.max()),
        weight=weight,
        numbers=numbers,
    )


def _is_other(where: Tensor, columns: Tensor, dim: int) -> bool:
    """Say whether a mask that hides positions to be kept is another one: a triangle beside padding on the left."""
    left = bool(columns.select(dim, 0).any())
    return left and bool(where.any()) and not bool(where.all())


_MOST = 0.4
"""Share of the positions to be kept that a mask on the wrong side hides: a triangle without its diagonal hides almost half."""
_SEEN = 1e-3
"""Share of the weight above which a position still counts: a mask that leaves more hides neither side."""


def _late(trace: Trace, softmax: Step, region: Tensor) -> Hiding | None:
    """Return what zeroes the hidden weights after the softmax has normalised over them."""
    reached = set(softmax.results)
    for step in trace.steps[trace.steps.index(softmax) + 1 :]:
        if not reached.intersection(step.operands) or _bare(step) not in _PASSING:
            continue
        found = _filled(trace, step)
        if found is None:
            reached.update(step.results)
            continue
        where, place, number = found
        if number == 0.0 and where.shape == region.shape and bool(where[region].all()):
            weights = trace.values[softmax.results[0]].values
            assert weights is not None
            maker = trace.makers.get(place)
            return Hiding(
                kind="late",
                op=step.op,
                mask=maker.op if maker is not None else None,
                value=0.0,
                low=float(weights.min()),
                high=float(weights.max()),
                weight=float((weights * region).sum(-1).max()),
            )
    return None


def find_late(trace: Trace, index: Tensor) -> Hiding | None:
    """Find what zeroes the weights of entries of other groups after a softmax over the entries of all groups.

    Args:
        trace: The run.
        index: int64 ``[N]``, the group of each entry.
    """
    apart = index[:, None] != index[None]
    for softmax in filter(_is_softmax, trace.steps):
        weights = trace.values[softmax.results[0]].values
        if weights is None or weights.shape[-2:] != apart.shape:
            continue
        found = _late(trace, softmax, apart.to(weights.device).expand(weights.shape))
        if found is not None and found.weight > _NEGLIGIBLE:
            return found
    return None


_COMPARISONS = frozenset(
    {"eq", "ne", "lt", "gt", "le", "ge", "__eq__", "__ne__", "__lt__", "__gt__", "__le__", "__ge__"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaidMask:
    """A mask that meets scores of every query and key.

    Attributes:
        shape: Of the mask as it meets them; its last size is 1.
        scores: Their shape, ``[..., queries, keys]``.
        op: The operation at which they meet.
        location: The line that gave the mask its dimensions.
        met: The line at which they meet.
    """

    shape: tuple[int, ...]
    scores: tuple[int, ...]
    op: str
    location: Location | None
    met: Location | None


def find_query_mask(
    run: Callable[[], object], module: nn.Module, masks: Iterable[Tensor], length: int
) -> LaidMask | None:
    """Find a padding mask that hides queries instead of keys.

    Args:
        run: One forward.
        module: The model.
        masks: The mask inputs that the forward gets; what compares integers counts as one too.
        length: Number of positions: of the scores' last two sizes.

    Returns:
        The first one; None where there is none, or where another mask hides keys.
    """
    watch = _MaskWatch(module, masks, length)
    with torch.no_grad(), watch:
        run()
    return None if watch.hides_keys else watch.found


class _MaskWatch(Watch):
    """Follows what is computed of masks alone, and looks where it meets anything else."""

    def __init__(self, module: nn.Module, masks: Iterable[Tensor], length: int) -> None:
        super().__init__(module)
        self.found: LaidMask | None = None
        self.hides_keys = False
        self._length = length
        # by id, which the tensor beside it keeps from being used again
        self._laid: dict[int, tuple[Tensor, Location | None]] = {id(m): (m, None) for m in masks}

    def after(
        self, func: Callable[..., Any], args: Any, kwargs: Any, result: Any, token: Any
    ) -> None:
        """Mark what comes of masks alone, and compare shapes where a mask meets floats."""
        given = list(tensors_in((args, kwargs)))
        laid = [self._laid[id(tensor)] for tensor in given if id(tensor) in self._laid]
        others = [tensor for tensor in given if id(tensor) not in self._laid and tensor.dim()]
        name = name_of(func)
        if not laid:
            if name.rpartition(".")[2] in _COMPARISONS and not any(
                t.is_floating_point() for t in given
            ):
                self._mark(result, self.locate())
            return
        scores = [t for t in others if t.is_floating_point()]
        if not scores:
            mask, line = laid[0]
            same = all(t.shape == mask.shape for t in tensors_in(result))
            self._mark(result, line if same and line is not None else self.locate())
            return
        for mask, line in laid:
            for score in scores:
                size = self._length
                if size < 2 or score.dim() < 3 or tuple(score.shape[-2:]) != (size, size):
                    continue
                last = tuple(mask.shape[-2:])
                self.hides_keys |= bool(last) and last[-1] == size
                if self.found is None and last == (size, 1):
                    self.found = LaidMask(
                        shape=tuple(mask.shape),
                        scores=tuple(score.shape),
                        op=name,
                        location=line,
                        met=self.locate(),
                    )

    def _mark(self, result: Any, line: Location | None) -> None:
        for tensor in tensors_in(result):
            self._laid[id(tensor)] = (tensor, line)
