"""Outputs and targets that a loss stretches against each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ...probes.loss.consumption import Broadcast

if TYPE_CHECKING:
    from ...probes.loss.consumption import LossWatch

PAIRED = ("F.mse_loss", "F.l1_loss", "F.smooth_l1_loss", "F.huber_loss")
"""Losses that broadcast their two arguments with a warning; the others refuse shapes that differ."""


def stretched(watch: LossWatch) -> tuple[Broadcast, ...]:
    """Return the pairs of shapes that broadcast: of outputs and targets, and of all that a paired loss is given."""
    found = {(pair.op.location, pair.output, pair.target): pair for pair in watch.broadcasts}
    for call in watch.calls:
        target = call.target
        if call.op.name not in PAIRED or target is None or target.shape == call.input.shape:
            continue
        shapes = tuple(call.input.shape), tuple(target.shape)
        joint = tuple(torch.broadcast_shapes(*shapes))
        several = joint == shapes[1] and _differs(target, shapes[0])
        pair = Broadcast(
            op=call.op, output=shapes[0], target=shapes[1], result=joint, several=several
        )
        key = (call.op.location, *shapes)
        if several or key not in found:
            found[key] = pair
    return tuple(found.values())


def _differs(target: torch.Tensor, shape: tuple[int, ...]) -> bool:
    """Say whether entries of a target that one output is stretched over differ."""
    if target.requires_grad or target.dim() != len(shape) or not target.is_floating_point():
        return False
    over = [d for d, (n, m) in enumerate(zip(target.shape, shape, strict=True)) if m == 1 < n]
    return bool(over) and bool((target.amax(over) != target.amin(over)).any())


def mutual(pair: Broadcast) -> bool:
    """Say whether an output and a target of different ranks are both repeated: each sample meets the targets of all."""
    return pair.result not in (pair.output, pair.target) and len(pair.output) != len(pair.target)
