"""A loss has a lowest value: no term of it falls for ever while an output grows."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from ...codes import loss as explain
from ...objects import trees
from ...state import seed_everything
from ...subject.errors import SubjectError
from ...verdicts import inconclusive, not_applicable, passed
from .targets import base_slopes, loss_of_output

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ...findings import Finding
    from ...probes.loss.slopes import LossOfOutput
    from ...subject import Subject

_SHIFTS: Final = (10.0, 100.0, 1000.0)
_LINEAR: Final = 0.5
"""Least share of the decline of a straight line: a logarithm, which falls ever more slowly, has a hundredth of it."""
_EVEN: Final = 0.05
"""Relative difference up to which the loss falls on one side as it rises on the other: a linear term is meant so."""


def loss_bounded(subject: Subject) -> Iterator[Finding]:
    """Shift each output by large numbers, both ways, with these targets and others.

    A critic's score or a log determinant is linear, and falls for ever on one side as it rises on
    the other: that is by design, and so is a term that rewards or punishes by its target. What is
    blamed rises on one side faster than it falls on the other, whatever the targets are.
    """
    loss = loss_of_output(subject)
    if isinstance(loss, str):
        yield not_applicable(loss)
        return
    base = base_slopes(subject, loss)
    read = {} if base is None else base.by_output
    for path in read:
        for sign in (1.0, -1.0):
            along = partial(_value, loss, path, sign)
            if not _falls(along) or not _rises_otherwise(along) or not _by_itself(loss, path, sign):
                continue
            moved = _by_bias(subject, path, sign)
            if moved is not None and _falls(moved):
                yield explain.unbounded(subject, loss, path, sign, moved(_SHIFTS[-1]))
                return
    if not read:
        yield inconclusive("the loss has no gradient with respect to an output")
        return
    yield passed(f"the loss keeps a bound while {len(read)} outputs are shifted by {_SHIFTS[-1]:g}")


def _value(loss: LossOfOutput, path: str, sign: float, by: float) -> float:
    """Return the loss with an output shifted; NaN where the loss refuses it."""
    try:
        value = loss.shifted(path, sign * by).run()[0]
    except SubjectError:
        return math.nan
    return float(value.detach()) if value.dim() == 0 else math.nan


def _falls(value: Callable[[float], float]) -> bool:
    """Say whether the loss goes on falling with an ever larger shift, no slower than a straight line."""
    near, far = value(_SHIFTS[0]), value(_SHIFTS[1])
    if not (math.isfinite(near) and math.isfinite(far)) or far >= near:
        return False
    straight = (_SHIFTS[2] - _SHIFTS[1]) / (_SHIFTS[1] - _SHIFTS[0]) * (far - near)
    farther = value(_SHIFTS[2])
    return math.isfinite(farther) and farther - far <= _LINEAR * straight


def _rises_otherwise(value: Callable[[float], float]) -> bool:
    """Say whether the loss rises with the opposite shift, and in another way than it falls."""
    fall = value(_SHIFTS[1]) - value(_SHIFTS[0])
    rise = value(-_SHIFTS[1]) - value(-_SHIFTS[0])  # may be infinite
    return rise > 0 and not abs(rise + fall) <= _EVEN * abs(fall)


def _by_itself(loss: LossOfOutput, path: str, sign: float) -> bool:
    """Say whether the loss falls in the same way for other targets, and rises on the other side for each.

    What a target weighs may fall for ever: the probability of an action that is punished. So may a
    bonus, such as an entropy, beside a term that limits the output by its targets.
    """

    def changes(loss: LossOfOutput) -> tuple[float, ...]:
        fall = _value(loss, path, sign, _SHIFTS[2]) - _value(loss, path, sign, _SHIFTS[1])
        rise = _value(loss, path, sign, -_SHIFTS[0]) - _value(loss, path, sign, 0.0)
        return fall, rise

    base, _ = changes(loss)
    others = [
        changes(loss.of(loss.with_targets(target, other)))
        for target in loss.targets().values()
        for other in _others(target)
    ]
    return bool(others) and all(
        rise > 0 and abs(fall - base) <= _EVEN * abs(base) for fall, rise in others
    )


def _others(target: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield targets of the same kind: in another order, and with the opposite sign where they have one."""
    if target.is_complex() or not target.numel():
        return
    yield target.flatten().roll(1).view_as(target)
    if target.is_floating_point():
        yield -target
        yield torch.zeros_like(target)


def _by_bias(subject: Subject, path: str, sign: float) -> Callable[[float], float] | None:
    """Return the loss of a training forward by a shift of an output's bias; None where none gives it.

    What the model computes from the output, such as a sample, follows the shift too.
    """
    found = _bias_of(subject, path)
    if found is None:
        return None
    name, start, width = found

    def value(by: float) -> float:
        with subject.pristine() as model, torch.no_grad():
            bias = model.get_parameter(name)
            bias[start : start + width] += sign * by
            model.train()
            seed_everything(subject.seed)
            batch = subject.batch().clone()
            try:
                return float(subject.compute_loss(subject.call(model, batch), batch))
            except SubjectError:
                return math.nan

    return value


def _bias_of(subject: Subject, path: str) -> tuple[str, int, int] | None:
    """Return the bias that is added last to an output: its name, its first entry there, their number."""
    made: list[tuple[str, torch.Tensor]] = []
    with subject.pristine() as model, torch.no_grad():
        handles = [
            module.register_forward_hook(
                lambda _m, _i, out, name=name: made.append((f"{name}.bias", out))
            )
            for name, module in model.named_modules()
            if isinstance(module, nn.Linear) and module.bias is not None
        ]
        try:
            model.train()
            seed_everything(subject.seed)
            output: Any = subject.call(model, subject.batch().clone())
        finally:
            for handle in handles:
                handle.remove()
    given = trees.floats(output).get(path)
    for name, tensor in made:
        if given is None or given.dim() != tensor.dim() or given.shape[:-1] != tensor.shape[:-1]:
            continue
        if given.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr():
            start = int(given.storage_offset() - tensor.storage_offset())
            if given.stride() == tensor.stride() and start + given.shape[-1] <= tensor.shape[-1]:
                return name, start, given.shape[-1]
    return None
