"""One output that suits all targets: a loss in which one of two labels has no part."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import torch

from ...lean import dataclass
from ...objects import trees
from ...subject.errors import SubjectError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...probes.loss.slopes import LossOfOutput, Slopes

_SURE: Final = 60.0
"""An output as a model of no doubt gives it: the loss of a logit there is below rounding."""
_FLOOR: Final = 1e-6
_CLASSES: Final = 3
"""So many classes occur: of two, one may be what a loss is to ignore."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suited:
    """Labels that one and the same output satisfies; plain data.

    Attributes:
        path: Of the output.
        target: Of the labels.
        idle: The labels at which the loss has no gradient: 0 or 1, or all classes but one.
        share: The part of the labels that have these values.
        before, after: The loss of the model's output, and of that one output for all.
    """

    path: str
    target: str
    idle: tuple[int, ...]
    share: float
    before: float
    after: float


def one_for_all(
    loss: LossOfOutput, base: Slopes, classes: Mapping[str, int] | None = None
) -> Suited | None:
    """Look whether the same output for every sample and label is perfect, though the labels are 0 and 1, or classes.

    Args:
        loss: The loss.
        base: Its slopes with the targets as they are.
        classes: How many there are, by path of the labels that may be any of them.

    Cost: nothing unless every entry of one label has a gradient of exactly zero; else two calls of the loss.
    """
    targets = loss.targets()
    if len(targets) != 1 or not math.isfinite(base.value) or base.value < 0:
        return None
    ((name, labels),) = targets.items()
    labels = trees.dense(labels)
    if labels.dtype == torch.int64:
        if (count := (classes or {}).get(name, 0)) <= labels.numel() and count >= _CLASSES:
            if all(bool((slope != 0).all()) for slope in base.by_output.values()):
                return None
            numbers = torch.arange(labels.numel(), device=labels.device) % count
            each = numbers.reshape(labels.shape)
            try:
                varied = loss.of(loss.with_targets(targets[name], each))
                slopes = varied.slopes()
            except SubjectError:
                return None
            return None if slopes is None else _one_class(varied, slopes, name, each)
        if (found := _one_class(loss, base, name, labels)) is not None:
            return found
    if base.value == 0:
        return None
    ones = labels == 1
    if not bool((ones | (labels == 0)).all()) or bool((ones == ones[:1]).all()):
        return None
    for path, slope in base.by_output.items():
        if slope.shape != labels.shape:
            continue
        for idle in (0, 1):
            pulling = slope[ones if idle == 0 else ~ones]
            resting = slope[~ones if idle == 0 else ones]
            if bool(resting.any()) or not bool((pulling != 0).all()):
                continue
            sign = -float(pulling.flatten()[0].sign())
            try:
                value = loss.at(path, torch.full_like(slope, sign * _SURE)).run()[0]
            except SubjectError:
                continue
            if value.dim() == 0 and 0 <= float(value.detach()) <= _FLOOR * base.value:
                share = float((~ones if idle == 0 else ones).double().mean())
                return Suited(
                    path=path, target=name, idle=(idle,), share=share,
                    before=base.value, after=float(value.detach()),
                )  # fmt: skip
    return None


def _one_class(loss: LossOfOutput, base: Slopes, name: str, labels: torch.Tensor) -> Suited | None:
    """Look whether one class alone has a gradient, everywhere, of at least three, and scores for it are perfect."""
    classes = labels.unique()
    if len(classes) < _CLASSES or int(classes[0]) < 0 or not base.finite or base.value <= 0:
        return None
    for path, slope in base.by_output.items():
        for axis in range(slope.dim()):
            rest = slope.shape[:axis] + slope.shape[axis + 1 :]
            if rest != labels.shape or slope.shape[axis] <= int(classes[-1]):
                continue
            pulled = (slope != 0).any(axis)
            kept = labels[pulled].unique()
            if len(kept) != 1 or not bool(pulled[labels == kept].all()):
                continue
            scores = torch.zeros_like(slope)
            scores.select(axis, int(kept)).fill_(_SURE)
            try:
                value = loss.at(path, scores).run()[0]
            except SubjectError:
                continue
            if value.dim() == 0 and 0 <= float(value.detach()) <= _FLOOR * base.value:
                return Suited(
                    path=path, target=name, before=base.value, after=float(value.detach()),
                    idle=tuple(int(c) for c in classes if c != kept),
                    share=float((labels != kept).double().mean()),
                )  # fmt: skip
    return None
