"""The gradient of a loss follows the targets, and not the places of samples in a batch."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import torch

from ...lean import dataclass
from ...objects import trees
from ...state import has_drawn, random_states, seed_everything
from ...subject.errors import SubjectError
from .pulls import ROUNDING, other_classes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ...subject import Subject
    from .own import OwnLoss
    from .slopes import LossOfOutput, Slopes

FAR: Final = 10.0
"""Factor between the weights of two places that no discount over the steps of a short rollout has."""
_SLIGHT: Final = 1.25
_PARALLEL: Final = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Deaf:
    """Targets that the value of a loss follows and its gradient does not; plain data.

    Attributes:
        paths: Of the targets.
        base: The loss with the targets as they are.
        values: The loss with each of the other ones.
    """

    paths: tuple[str, ...]
    base: float
    values: tuple[float, ...]


def deaf_gradient(
    loss: LossOfOutput | OwnLoss, base: Slopes, targets: dict[str, torch.Tensor]
) -> Deaf | None:
    """Exchange whole targets for very different ones; None where the gradient follows some of them.

    An absolute error and a hinge have the same gradient for many targets, but not for targets on either
    side of the outputs, nor for other classes.
    """
    if not targets or not any(bool(slope.any()) for slope in base.by_output.values()):
        return None
    values: list[float] = []
    for target in targets.values():
        moved = 0
        for other in _different(target, loss.outputs.values()):
            try:
                now = loss.slopes(loss.with_targets(target, other))
            except SubjectError:
                continue
            if now is None or not now.finite:
                continue
            if not _same_slopes(base, now):
                return None
            moved += now.value != base.value
            values.append(now.value)
        if moved < _DRAWS:
            return None
    return Deaf(paths=tuple(targets), base=base.value, values=tuple(values))


_DRAWS = 2


def _different(target: torch.Tensor, outputs: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Yield targets of other values: other classes, and numbers far below and above, also of all outputs."""
    if target.dtype == torch.bool:
        yield ~target
        yield target.flip(0)
        yield torch.ones_like(target)
    elif target.is_complex():
        yield -target
        yield target * 1j
    elif not target.is_floating_point():
        classes = max(int(target.max()) + 1, 2)
        if bool((target >= 0).any()):
            for k in range(1, min(classes, 4)):
                yield other_classes(target, target, k)
        yield target.flip(0)
    elif bool(((target == 0) | (target == 1)).all()):
        yield 1 - target
        yield target.flip(0)
        yield torch.zeros_like(target)
    else:
        span = 3.0 * float(target.max() - target.min()) or 1.0
        span += max(
            (float(trees.dense(t).detach().abs().max()) for t in outputs if t.numel()), default=0.0
        )
        yield target + span
        yield target - span
        yield target.flip(0)
        yield 3.0 * target


def _same_slopes(base: Slopes, now: Slopes) -> bool:
    if base.by_output.keys() != now.by_output.keys():
        return False
    for path, slope in base.by_output.items():
        difference = float((trees.dense(now.by_output[path]) - trees.dense(slope)).abs().max())
        if difference > ROUNDING * float(slope.abs().max()):
            return False
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class ByPlace:
    """A sample that weighs otherwise at another place of the batch; plain data.

    Attributes:
        sample: Which one.
        place: Where it was moved.
        factor: By how much its gradient grew there, in the same direction.
        others: The factors of all samples.
        any_size: Whether the loss takes fewer samples: weights made for one data set do not fit them.
    """

    sample: int
    place: int
    factor: float
    others: tuple[float, ...]
    any_size: bool

    @property
    def ratio(self) -> float:
        """The factor, or its inverse where that is larger."""
        return max(self.factor, 1 / self.factor)

    @property
    def far(self) -> bool:
        """Whether the weights differ by more than a discount over a few steps explains."""
        return self.ratio >= FAR


def by_place(
    subject: Subject, loss: LossOfOutput, base: Slopes, axis: int, size: int
) -> ByPlace | None:
    """Move outputs and targets to other places together, and compare the gradient of each sample with its own.

    Where each keeps its direction and changes its length, the weight of a sample depends on its place.
    A loss that relates samples gives other directions, and one that draws random numbers other weights.
    """
    if size < 3 or _draws(subject, loss):
        return None
    worst: ByPlace | None = None
    order = torch.arange(size)
    for moved in (order.flip(0), order.roll(1)):
        try:
            now = loss.cut(moved, axis).slopes()
        except SubjectError:
            return None
        if now is None or not now.finite or now.by_output.keys() != base.by_output.keys():
            return None
        factors = _factors(base, now, moved, axis)
        if factors is None:
            return None
        for place, factor in enumerate(factors):
            if max(factor, 1 / factor) > (_SLIGHT if worst is None else worst.ratio):
                worst = ByPlace(
                    sample=int(moved[place]),
                    place=place,
                    factor=factor,
                    others=tuple(factors),
                    any_size=True,
                )
    if worst is None:
        return None
    try:
        loss.cut(order[: size - 1], axis).run()
    except SubjectError:
        return replace(worst, any_size=False)
    return worst


def _factors(base: Slopes, now: Slopes, moved: torch.Tensor, axis: int) -> list[float] | None:
    """Return by what each gradient is multiplied, in the new order; None where one has another direction or is zero."""
    old = _rows(base.by_output.values(), axis)[moved]
    new = _rows(now.by_output.values(), axis)
    lengths, others = old.norm(dim=1), new.norm(dim=1)
    live = lengths > 0
    if not bool((live == (others > 0)).all()) or not bool(live.any()):
        return None
    factor = torch.ones(len(old), dtype=torch.float64)
    factor[live] = (old * new).sum(1)[live] / lengths[live] ** 2
    if not bool((factor > 0).all()):
        return None
    if not bool(((new - factor[:, None] * old).norm(dim=1) <= _PARALLEL * others).all()):
        return None
    return [float(f) for f in factor]


def _rows(slopes: Iterable[torch.Tensor], axis: int) -> torch.Tensor:
    return torch.cat(
        [
            trees.dense(s).detach().cpu().movedim(axis, 0).reshape(s.shape[axis], -1).double()
            for s in slopes
        ],
        dim=1,
    )


def _draws(subject: Subject, loss: LossOfOutput) -> bool:
    """Say whether the loss draws random numbers."""
    seed_everything(subject.seed)
    before = random_states()
    loss.run()
    return has_drawn(before)
