"""Calls in which an input is broadcast further than the given call does."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ..calls import Call, is_float
from ..relations.jacobians import as_real

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch
    from torch import Tensor

    from ..target import Target

_MOST = 4


def broadcasts(target: Target) -> Iterator[tuple[str, Target]]:
    """Yield targets in which an input that is broadcast is cut to size 1 along a further axis.

    Only inputs that the call itself broadcasts: a forward may accept sizes by accident that it was never
    meant for (a loss of two tensors, a normalisation), and owes no gradient there.
    """
    call = target.call
    outputs = call.evaluate()
    shapes = [out.shape for out in outputs]
    largest = max((outputs[i] for i in target.chosen), key=lambda out: (out.dim(), out.numel()))
    found = 0
    for index in call.wanted:
        value = call.values[index]
        if not _is_broadcast(value, largest):
            continue
        axes = [d for d in range(value.dim()) if value.shape[d] > 1]
        for axis in dict.fromkeys(axes[:1] + axes[-1:]):
            if found >= _MOST:
                return
            smaller = call.replaced(index, value.narrow(axis, 0, 1).clone())
            if _usable(smaller, shapes, target):
                found += 1
                label = f"{target.input_name(index)} is broadcast along its axis {axis}"
                yield label, replace(target, call=smaller, original=None)


def _is_broadcast(value: Tensor, output: Tensor) -> bool:
    """Say whether an input's shape broadcasts to an output's, and is smaller."""
    if value.dim() > output.dim() or value.numel() >= output.numel():
        return False
    aligned = (1,) * (output.dim() - value.dim()) + tuple(value.shape)
    return all(a in (1, b) for a, b in zip(aligned, output.shape, strict=True))


def _usable(call: Call, shapes: list[torch.Size], target: Target) -> bool:
    try:
        outputs = call.evaluate()
        if [out.shape for out in outputs] != shapes:
            return False
        if any(is_float(out) and not bool(as_real(out).isfinite().all()) for out in outputs):
            return False
        run = call.run()
        if tuple(run.differentiable) != target.chosen:
            return False
        run.grads(target.upstream(run))
    except Exception:  # a refusal, in forward or backward, is loud: nothing silent to find
        return False
    return True
