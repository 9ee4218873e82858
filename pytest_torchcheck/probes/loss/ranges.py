"""Which targets torch documents its losses for, and what a call was given instead."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from ...lean import dataclass
from ...objects import trees
from .consumption import COMPARING_TWO

if TYPE_CHECKING:
    from torch import Tensor

    from .consumption import LossCall

_PROBABILITIES: Final = ("F.binary_cross_entropy_with_logits", "F.multilabel_soft_margin_loss")
_SIGNS: Final = ("F.soft_margin_loss", "F.hinge_embedding_loss", *COMPARING_TWO)
"""Losses of targets that are -1 or 1."""
_INDICES: Final = "F.multilabel_margin_loss"


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """The targets of one call whose range torch documents; plain data.

    Attributes:
        allowed: What they may be: ``between 0 and 1``, ``-1 or 1``, ``each class of a row once``.
        counted: How many there are.
        outside: The lowest and highest, or all of a few, where some are not so.
    """

    allowed: str
    counted: int
    outside: tuple[float, ...] = ()


def range_of(call: LossCall, grad: Tensor | None) -> Range | None:
    """Compare the targets of a call with what its function is documented for; None where nothing is said of them.

    Args:
        call: The call.
        grad: The loss's gradient to its input: what a binary cross entropy leaves out is a mark, and no target.
    """
    name, target = call.op.name, call.target
    if target is None or not target.numel() or target.requires_grad:
        return None
    values = trees.dense(target.detach())
    if name in _PROBABILITIES:
        beyond = (values < 0) | (values > 1)
        heeded = (
            grad is not None and grad.shape == values.shape and beyond & (trees.dense(grad) != 0)
        )
        some = isinstance(heeded, torch.Tensor) and bool(heeded.any())
        return Range(
            allowed="between 0 and 1", counted=values.numel(), outside=_ends(values) if some else ()
        )
    if name in _SIGNS:
        allowed = "-1 or 1"
        if bool((values.abs() == 1).all()):
            return Range(allowed=allowed, counted=values.numel())
        # -1, 0 and 1 leave some out; 0 and 1 are the two classes, of which one would be left out
        marks = bool(((values == 0) | (values == 1)).all()) and bool((values == 1).any())
        return Range(allowed=allowed, counted=values.numel(), outside=(0.0, 1.0)) if marks else None
    if name == _INDICES:
        rows = values.reshape(-1, values.shape[-1])
        named = rows.masked_fill((rows < 0).int().cummax(1).values.bool(), -1).sort(1).values
        twice = named[:, 1:][(named[:, 1:] == named[:, :-1]) & (named[:, 1:] >= 0)]
        return Range(
            allowed="each class of a row once", counted=values.numel(),
            outside=_ends(twice) if twice.numel() else (),
        )  # fmt: skip
    return None


def _ends(values: Tensor) -> tuple[float, ...]:
    found = torch.unique(values.float())
    return tuple(found.tolist() if len(found) <= 4 else found[[0, -1]].tolist())
