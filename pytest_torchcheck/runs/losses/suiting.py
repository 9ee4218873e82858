"""One output that suits all targets: a loss in which one of two labels has no part."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import torch

from ...lean import dataclass
from ...objects import trees
from ...subject.errors import SubjectError

if TYPE_CHECKING:
    from ...probes.loss.slopes import LossOfOutput, Slopes

_SURE: Final = 60.0
"""An output as a model of no doubt gives it: the loss of a logit there is below rounding."""
_FLOOR: Final = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Suited:
    """Labels that one and the same output satisfies; plain data.

    Attributes:
        path: Of the output.
        target: Of the labels.
        idle: The label, 0 or 1, at which the loss has no gradient.
        share: The part of the labels that have this value.
        before, after: The loss of the model's output, and of that one output for all.
    """

    path: str
    target: str
    idle: int
    share: float
    before: float
    after: float


def one_for_all(loss: LossOfOutput, base: Slopes) -> Suited | None:
    """Look whether the same output for every sample and label is perfect, though the labels are 0 and 1.

    Cost: nothing unless every entry of one label has a gradient of exactly zero; else one call of the loss.
    """
    targets = loss.targets()
    if len(targets) != 1 or not math.isfinite(base.value) or base.value <= 0:
        return None
    ((name, labels),) = targets.items()
    labels = trees.dense(labels)
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
                    path=path, target=name, idle=idle, share=share,
                    before=base.value, after=float(value.detach()),
                )  # fmt: skip
    return None
