"""Losses that are one of torch's criteria and nothing else: what their graph shows need not be tried."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

import torch

from ...lean import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

_CLASSES: Final = ("NllLossBackward0", "NllLoss2DBackward0")
_ELEMENTS: Final = ("MseLossBackward0", "BinaryCrossEntropyWithLogitsBackward0")
_SUM: Final = 2  # torch's own number of reduction="sum"


@dataclass(frozen=True, slots=True)
class Plain:
    """A criterion of torch's of an output and a target, both as they are given: its terms are of one place of both.

    Attributes:
        summed: Whether the terms are summed, rather than averaged.
        ignored: The class that has no term; None where every target has one.
    """

    summed: bool
    ignored: int | None

    def counts(self, target: Tensor) -> Tensor:
        """Return by sample whether any of its targets has a term."""
        if self.ignored is None:
            return torch.ones(len(target), dtype=torch.bool)
        return ((target >= 0) & (target != self.ignored)).reshape(len(target), -1).any(1)


def plain_criterion(
    loss: Tensor, outputs: Mapping[str, Tensor], targets: Mapping[str, Tensor]
) -> Plain | None:
    """Return what a loss is that has one output and one target, with samples along their first axis; None for others.

    Weights, smoothed labels, masks and whatever else is done to either show in the graph.

    Args:
        loss: The loss, with its graph.
        outputs: The leaves that it was given.
        targets: What it was given beside them, fresh copies.
    """
    node: Any = loss.grad_fn
    if node is None or len(outputs) != 1 or len(targets) != 1:
        return None
    (output,), (target,) = outputs.values(), targets.values()
    name, above = node.name(), node
    if name in _CLASSES:
        above = node.next_functions[0][0]
        if above.name() != "LogSoftmaxBackward0" or above._saved_dim != 1 or output.shape[1] < 2:
            return None
    elif name not in _ELEMENTS or output.shape != target.shape:
        return None
    weights = ("_saved_weight", "_saved_pos_weight")
    if any(getattr(node, each, None) is not None for each in weights):
        return None
    if getattr(above.next_functions[0][0], "variable", None) is not output or not output.dim():
        return None
    with contextlib.suppress(RuntimeError):  # of a target that was written to since
        if node._saved_target is target and not target._version:
            ignored: Any = getattr(node, "_saved_ignore_index", None)
            signed = ignored is None or ignored < 2**63
            return Plain(node._saved_reduction == _SUM, ignored if signed else ignored - 2**64)
    return None
