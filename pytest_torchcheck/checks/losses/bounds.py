"""A loss has a lowest value: no term of it falls for ever while an output grows."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import torch

from ...codes import loss as explain
from ...lean import dataclass
from ...probes.loss.free import Clamps, freed
from ...runs.losses.consumption import evidence
from ...runs.losses.volumes import names_it, volumes
from ...state import seed_everything
from ...subject.errors import SubjectError
from ...verdicts import inconclusive, not_applicable, passed
from .targets import BY_SAMPLE, base_slopes, loss_of_output

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import nn

    from ...batches import Batch
    from ...findings import Finding
    from ...probes.loss.slopes import LossOfOutput
    from ...subject import Subject

    Part = tuple[int, int] | None  # a dimension of an output and a place in it, or all of it

_SHIFTS: Final = (10.0, 100.0, 1000.0)
_LINEAR: Final = 0.5
"""Least share of the decline of a straight line: a logarithm, which falls ever more slowly, has a hundredth of it."""
_MOST_CHANNELS: Final = 512
"""Beyond it the units are classes or tokens, and no parameters of a distribution."""
_EVEN: Final = 0.05
"""Relative difference up to which the loss falls on one side as it rises on the other: a linear term is meant so."""


@dataclass(frozen=True, slots=True)
class _Along:
    """The loss by a shift of one output, or of a part of it; NaN where the loss refuses it."""

    loss: LossOfOutput
    path: str
    part: Part
    sign: float

    def __call__(self, by: float) -> float:
        try:
            value = self.loss.shifted(self.path, self.sign * by, self.part).run()[0]
        except SubjectError:
            return math.nan
        return float(value.detach()) if value.dim() == 0 else math.nan


def loss_bounded(subject: Subject) -> Iterator[Finding]:
    """Shift each output, and some of its channels, by large numbers, both ways, with these targets and others.

    A critic's score or a log determinant is linear, and falls for ever on one side as it rises on
    the other: that is by design, and so is a term that rewards or punishes by its target. What is
    blamed falls on both sides, or rises on one faster than it falls on the other, whatever the
    targets are.
    """
    loss = loss_of_output(subject)
    if isinstance(loss, str):
        yield not_applicable(loss)
        return
    base = base_slopes(subject, loss)
    read = {} if base is None else base.by_output
    bounded = base is not None and _of_torch(subject, base.last)
    if isinstance(bounded, str):
        yield inconclusive(bounded)
        return
    freed: Freeing | None = None
    falling = ""
    for path in () if bounded else read:
        for part, sign in itertools.product(_parts(loss.outputs[path]), (1.0, -1.0)):
            along = _Along(loss, path, part, sign)
            if not _falls(along):
                continue
            falling = path
            if not _rises_otherwise(along) or not _by_itself(along):
                continue
            freed = freed or Freeing(subject)
            moved = freed.along(path, part, sign)
            if moved is not None and _falls(moved):
                lowest = moved(_SHIFTS[-1])
                yield explain.unbounded(subject, loss, path, part, sign, lowest, freed.passed)
                return
    if not read:
        yield inconclusive("the loss has no gradient with respect to an output")
    elif bounded:
        yield passed(
            "the loss is a criterion of torch's and nothing else, which has a lowest value"
        )
    elif falling:
        yield passed(
            f"the loss falls without end as {falling} moves one way, as that of a score may; that it also falls on "
            "the other side, and for other targets, was not found"
        )
    else:
        yield passed(
            f"the loss keeps a bound while {len(read)} outputs are shifted by {_SHIFTS[-1]:g}"
        )


def _of_torch(subject: Subject, last: str) -> bool | str:
    """Say whether a loss is a criterion of torch's that has a lowest value, or why its targets leave it without one.

    Args:
        subject: Whose loss it is.
        last: The autograd node that gave it.
    """
    if not last.startswith(BY_SAMPLE):
        return False
    calls = evidence(subject).consumed
    outside = next((u.range.outside for u in calls if u.range and u.range.outside), None)
    if last.startswith("BinaryCrossEntropy") and outside:
        values = f"from {outside[0]:g} to {outside[-1]:g}"
        return (
            f"the targets are {values}: beyond 0 to 1, a binary cross entropy has no lowest value"
        )
    logs = any(used.function == "F.cross_entropy" or used.log_distribution for used in calls)
    return logs or not last.startswith("NllLoss")


def _parts(output: torch.Tensor) -> Iterator[Part]:
    """Yield what of an output is shifted: all of it, and the first and the last of its channels.

    A mean and a logarithm of a variance may be the halves of one output.
    """
    yield None
    dims = (1, output.dim() - 1) if output.dim() > 2 else (output.dim() - 1,)
    for dim in dims if output.dim() > 1 else ():
        if 1 < output.shape[dim] <= _MOST_CHANNELS:
            yield dim, 0
            yield dim, output.shape[dim] - 1


def _falls(value: Callable[[float], float]) -> bool:
    """Say whether the loss goes on falling with an ever larger shift, no slower than a straight line."""
    near, far = value(_SHIFTS[0]), value(_SHIFTS[1])
    if not (math.isfinite(near) and math.isfinite(far)) or far >= near:
        return False
    straight = (_SHIFTS[2] - _SHIFTS[1]) / (_SHIFTS[1] - _SHIFTS[0]) * (far - near)
    farther = value(_SHIFTS[2])
    return math.isfinite(farther) and farther - far <= _LINEAR * straight


def _rises_otherwise(value: Callable[[float], float]) -> bool:
    """Say whether the loss changes with the opposite shift in another way than a straight line does."""
    fall = value(_SHIFTS[1]) - value(_SHIFTS[0])
    rise = value(-_SHIFTS[1]) - value(-_SHIFTS[0])  # may be infinite
    if rise < 0:
        return rise == -math.inf or _falls(lambda by: value(-by))
    return rise > 0 and not abs(rise + fall) <= _EVEN * abs(fall)


def _by_itself(along: _Along) -> bool:
    """Say whether the loss falls in the same way for other targets, and does on the other side as for these.

    What a target weighs may fall for ever: the probability of an action that is punished. So may a
    bonus, such as an entropy, beside a term that limits the output by its targets.
    """

    def changes(value: _Along) -> tuple[float, float]:
        return value(_SHIFTS[2]) - value(_SHIFTS[1]), value(-_SHIFTS[0]) - value(0.0)

    loss = along.loss
    base, opposite = changes(along)
    others = [
        changes(replace(along, loss=loss.of(loss.with_targets(target, other))))
        for target in loss.targets().values()
        for other in _others(target)
    ]
    return bool(others) and all(
        rise * opposite > 0 and abs(fall - base) <= _EVEN * abs(base) for fall, rise in others
    )


def _others(target: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield targets of the same kind: in another order, and with the opposite sign where they have one."""
    if target.is_complex() or not target.numel():
        return
    yield target.flatten().roll(1).view_as(target)
    if target.is_floating_point():
        yield -target
        yield torch.zeros_like(target)


class Freeing:
    """Runs of the model in which the bias is shifted from which an output comes.

    What the model computes from the output, such as a sample, follows the shift too. Clamps that do nothing are left
    out: they guard a value, and a loss that drives it against them is no better for it.

    Attributes:
        passed: The lines of these clamps.
    """

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._clamps = Clamps()
        with subject.pristine(steps=True) as model, torch.no_grad():
            self._biases = freed(model, lambda: self._forward(model, subject.batch().clone()))
        self.passed = tuple(self._clamps.lines)

    def along(self, path: str, part: Part, sign: float) -> Callable[[float], float] | None:
        """Return the loss of a training forward by a shift; None where no bias gives it."""
        found = self._biases.get(path)
        if found is None or (part is not None and part[0] != found.dim):
            return None
        start, width = (found.start, found.width) if part is None else (found.start + part[1], 1)

        def value(by: float) -> float:
            with self._subject.pristine(steps=True) as model, torch.no_grad():
                model.get_parameter(found.name)[start : start + width] += sign * by
                batch = self._subject.batch().clone()
                try:
                    return float(self._subject.compute_loss(self._forward(model, batch), batch))
                except SubjectError:
                    return math.nan

        return value

    def _forward(self, model: nn.Module, batch: Batch) -> Any:
        model.train()
        seed_everything(self._subject.seed)
        with self._clamps:
            return self._subject.call(model, batch)


def log_determinants(subject: Subject) -> Iterator[Finding]:
    """Compare what modules return as log-determinants with those of their Jacobians, and ask how the loss takes them.

    Such a module maps each sample to one of its size and gives a number beside it, in its forward or in a method such
    as ``inverse``. One that is the negative of the log-determinant is right where the loss rises with it. Another one
    is wrong where further modules of the model return theirs, or where a whole number is all that it lacks; a constant
    that no weight changes is none.
    """
    if not any(map(names_it, set(map(type, subject.model.modules())))):
        yield not_applicable("no module of the model names a log-determinant")
        return
    seen = volumes(subject)
    others = any(one.kind == "equal" and one.slope < 0 for one in seen)
    for one in seen:
        turned = {"opposite": one.slope < 0, "equal": one.slope > 0}.get(one.kind, False)
        lacks = one.times > 0 or (others and one.handed)
        differs = one.kind == "other" and one.inner and lacks
        if turned or differs or one.kind == "partial":
            yield explain.log_determinant(subject, one)
            return
    right = sum(one.kind in ("equal", "opposite") and one.slope != 0 for one in seen)
    if not right:
        yield not_applicable("no module returns the log-determinant of its map, as far as was seen")
        return
    yield passed(
        f"{right} modules return the log-determinants of their maps, with the sign that the loss asks for"
    )
