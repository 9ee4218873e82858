"""Two terms of a loss that meet: a target that weighs the term of labels, a fitted output that such a term reads."""

from __future__ import annotations

import math
import sys
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from ...lean import dataclass
from ...record.modes import Functions
from ...sources import rank
from ...subject.errors import SubjectError
from ..recorded.watch import Watch, name_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType

    from ...batches import Batch
    from ..recorded.watch import Op
    from .slopes import LossOfOutput

_FEWEST: Final = 4
_MANY: Final = 10
_STEP: Final = 0.1  # standard deviations of the target, to both sides
_EVEN: Final = 0.02
"""Of the difference of the slopes on both sides: a square and a linear term make it 0."""
_OFF: Final = 0.01  # standard deviations of the target
_FAR: Final = 3.0  # standard deviations of the target, to both sides
_FOLLOWS: Final = 1e-3
_BETWEEN: Final = ("torch.", f"{Functions.__module__}.", f"{Watch.__module__}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class PulledOff:
    """An output that a square fits to one target, and that a linear term of other labels pulls away; plain data.

    Attributes:
        path: Of the output.
        target: What it is fitted to.
        labels: What the other term reads.
        by: How far from the target the loss is lowest: the median over its elements, in standard deviations.
        op: The call by which the other term reads the output; None where it was not seen.
    """

    path: str
    target: str
    labels: str
    by: float
    op: Op | None


def weighed(loss: LossOfOutput, shape: Sequence[int]) -> str | None:
    """Return the real target by whose sign the loss pulls scores one way or the other, as by returns or advantages.

    Args:
        loss: Of the outputs.
        shape: Of the scores: outputs of other sizes are not asked.
    """
    try:
        if (base := loss.slopes()) is None:
            return None
        for name, target in loss.targets().items():
            if not target.is_floating_point():
                continue
            now = loss.slopes(loss.with_targets(target, -_MANY * target.abs()))
            slopes = {} if now is None else now.by_output
            both = {
                p
                for p in base.by_output.keys() & slopes
                if base.by_output[p].numel() == math.prod(shape)
            }
            if any(float((base.by_output[path] * slopes[path]).sum()) < 0 for path in both):
                return name
    except SubjectError:
        pass  # the loss refuses other targets
    return None


def pulled_off(loss: LossOfOutput) -> PulledOff | None:
    """Look for an output whose fit to a target is not where the loss is lowest, because of a term of other labels.

    A weight of a log-likelihood (an advantage) that has a fit of its own (the critic's) must be a constant in the
    former, else the labels decide what it is fitted to.

    Cost: three calls of the loss for each pair of an output and a real target of its size, beside whole labels.
    """
    targets = _columns(loss)
    labels = {name: target for name, target in targets.items() if target.whole}
    try:
        for path, target in _pairs(loss, targets) if labels else ():
            wanted = targets[target].values.detach().reshape(loss.outputs[path].shape)
            away = _away(loss, path, wanted)
            if away is None or not _meets(loss.at(path, wanted), loss.at(path, away[1]), path):
                continue
            for name, label in labels.items():
                if _weighs(loss, path, wanted, label):
                    op = _reader(loss.at(path, wanted), path)
                    return PulledOff(path=path, target=target, labels=name, by=away[0], op=op)
    except SubjectError:
        return None  # the loss refuses other outputs or labels
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    """A target, or a column of one whose columns stand for several.

    Attributes:
        values: Its values.
        whole: Whether they are labels: whole numbers, in a dtype of these or in a column beside real numbers.
        exchanged: Returns the batch with other values in their place.
    """

    values: Tensor
    whole: bool
    exchanged: Callable[[Tensor], Batch]


def _columns(loss: LossOfOutput) -> dict[str, _Target]:
    """Return the targets by name, and the columns of real ones that hold labels beside real numbers."""
    found: dict[str, _Target] = {}
    for name, target in loss.targets().items():
        if target.is_complex():
            continue
        whole = not target.is_floating_point() and target.dim() > 0
        swap = partial(loss.with_targets, target)
        found[name] = _Target(values=target, whole=whole, exchanged=swap)
        if (
            not target.is_floating_point()
            or target.dim() != 2
            or not 1 < target.shape[1] <= _FEWEST
        ):
            continue
        numbers = [bool((column == column.round()).all()) for column in target.T]
        if any(numbers) and not all(numbers):
            for place, (column, number) in enumerate(zip(target.T, numbers, strict=True)):
                instead = partial(_with_column, loss, target, place)
                found[f"{name}[:, {place}]"] = _Target(
                    values=column, whole=number, exchanged=instead
                )
    return found


def _with_column(loss: LossOfOutput, target: Tensor, place: int, values: Tensor) -> Batch:
    other = target.detach().clone()
    other[:, place] = values
    return loss.with_targets(target, other)


def weight_cut(loss: LossOfOutput) -> PulledOff | None:
    """Return the fitted output that another term would pull off, did the loss not cut it from that term's graph."""
    if pulled_off(loss) is not None:
        return None
    with uncut():
        return pulled_off(loss)


def uncut() -> Functions:
    """Return a block in which ``detach()`` and ``no_grad()`` of the user's code cut no graph."""

    def around(func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if func is Tensor.detach and _is_users():
            return args[0]
        if func.__name__ == "_set_grad_enabled" and args == (False,) and _is_users():
            return None
        return func(*args, **kwargs)

    return Functions(around)


def _is_users() -> bool:
    """Say whether the innermost code outside of torch and of what watches it is the user's."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and f"{frame.f_globals.get('__name__')}.".startswith(_BETWEEN):
        frame = frame.f_back
    return frame is not None and rank(frame.f_code.co_filename) > 0


def _pairs(loss: LossOfOutput, targets: dict[str, _Target]) -> Iterator[tuple[str, str]]:
    for path, output in loss.outputs.items():
        for name, one in targets.items():
            target, fits = one.values, one.values.numel() == output.numel() >= _FEWEST
            real = target.is_floating_point() and not one.whole and fits
            if real and bool((target != target.flatten()[0]).any()):
                yield path, name


def _away(loss: LossOfOutput, path: str, wanted: Tensor) -> tuple[float, Tensor] | None:
    """Return how far from the target the loss is lowest, and for which values.

    None where it is at the target, or the output is not fitted to it.
    """
    size = float(wanted.double().std())
    slopes = []
    for by in (0.0, _STEP * size, -_STEP * size):
        found = loss.at(path, wanted + by).slopes()
        if found is None or path not in found.by_output or not found.finite:
            return None
        slopes.append(found.by_output[path].double())
    here, above, below = slopes
    curve = above - below
    if not bool((curve > 0).all()) or bool(
        ((above + below - 2 * here).abs() > _EVEN * curve).any()
    ):
        return None
    way = here / curve * 2 * _STEP
    by = float(way.abs().median())
    return (by, wanted - way * size) if by > _OFF else None


def _meets(loss: LossOfOutput, rest: LossOfOutput, path: str) -> bool:
    """Say whether the slope to an output is another for another value of another output, as where both are factors.

    What labels add to a constant that the output is fitted to, as the ends of episodes do to returns, meets no output.
    What they add to another output that is a part of the target does not either: where the loss is lowest for the
    one, it has no slope to the other, or the same as elsewhere.
    """
    here, lowest = loss.slopes(), rest.slopes()
    for other, value in loss.outputs.items():
        there = None if other == path else loss.at(other, 1.5 * value.detach().flip(0)).slopes()
        if (
            here is None
            or there is None
            or path not in here.by_output.keys() & there.by_output.keys()
        ):
            continue
        slope = here.by_output[path]
        one, two = (None if s is None else s.by_output.get(other) for s in (here, lowest))
        if one is None or two is None or not _is_large(slope - there.by_output[path], slope):
            continue
        if _is_large(one - two, one) and _is_large(two, one):
            return True
    return False


def _is_large(part: Tensor, whole: Tensor) -> bool:
    return bool(part.abs().max() > _FOLLOWS * whole.abs().max())


def _weighs(loss: LossOfOutput, path: str, wanted: Tensor, labels: _Target) -> bool:
    """Say whether an output is a factor of a term of labels: other labels add the same to its slope anywhere."""
    other = labels.exchanged(labels.values.roll(1, 0))
    gaps = []
    for far in (0.0, _FAR, -_FAR):
        here = loss.at(path, wanted + far * float(wanted.double().std()))
        one, two = here.slopes(), here.slopes(other)
        if one is None or two is None or path not in one.by_output.keys() & two.by_output.keys():
            return False
        gaps.append((one.by_output[path] - two.by_output[path], one.by_output[path]))
    gap, slope = gaps[0]
    largest = gap.abs().max()
    if not bool(largest > _FOLLOWS * slope.abs().max()):
        return False
    return all(
        bool((one - gap).abs().max() <= _FOLLOWS * (largest + own.abs().max())) for one, own in gaps
    )


class _Readers(Watch):
    """Keeps the results of the calls that read an output or a view of it."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[Op, Tensor]] = []

    def after(
        self, func: Callable[..., Any], args: Any, kwargs: Any, result: Any, token: Any
    ) -> None:
        """See one call."""
        if isinstance(result, Tensor) and result.grad_fn is not None:
            self.found.append((self.op(name_of(func)), result))


def _reader(loss: LossOfOutput, path: str) -> Op | None:
    """Return the first call whose result, and no result before it on the way, carries the slope to the output."""
    with torch.enable_grad(), _Readers() as watch:
        value, leaves = loss.run()
    output = leaves[path]
    for op, result in watch.found:
        up = torch.autograd.grad(value, result, retain_graph=True, allow_unused=True)[0]
        if up is None or (result._is_view() and result._base is output):
            continue
        through = torch.autograd.grad(result, output, up, retain_graph=True, allow_unused=True)[0]
        if through is not None and bool(through.abs().max() > 0):
            return op
    return None
