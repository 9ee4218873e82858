"""Straight-through estimators that pass on the wrong one of their two values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..recorded.recording import Recorder
from ..recorded.steps import record_step

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from ..recorded.values import Call, Value
    from ..recorded.watch import Op

_SUMS = ("add", "__add__", "__radd__", "add_", "__iadd__")
_DIFFERENCES = ("sub", "__sub__", "sub_", "__isub__", "subtract")


def wrong_way_round(run: Callable[[], object], module: nn.Module) -> Op | None:
    """Return the sum ``a + (z - a).detach()`` whose ``a`` is computed from ``z`` without a gradient.

    Its value is ``z``, as if nothing had been computed of it, and the gradient goes to ``a`` and never comes to
    ``z``. An estimator has the value of what is computed (a quantised value, a hard choice), and the gradient of
    what it is computed from. A factor on a gradient is written in the same way, and its ``a`` passes a gradient on.

    Args:
        run: Returns the loss.
        module: The model.

    Returns:
        The operation that adds, or None. Cost: one recorded forward and loss.
    """
    recorder = Recorder(module)
    try:
        record_step(run, recorder, backward=False)
        return next((call.op for call in recorder.calls if _is_wrong(call)), None)
    finally:
        recorder.release()


def _is_wrong(call: Call) -> bool:
    sign = _verb(call) in _DIFFERENCES
    if len(call.inputs) != 2 or not (sign or _verb(call) in _SUMS):
        return False
    carrier, stopped = sorted(call.inputs, key=lambda v: not v.tensor.requires_grad)
    if not carrier.tensor.requires_grad or (sign and call.inputs[0] is not carrier):
        return False
    maker = stopped.maker
    if maker is None or _verb(maker) != "detach" or (apart := maker.inputs[0].maker) is None:
        return False
    if _verb(apart) not in _DIFFERENCES or len(apart.inputs) != 2:
        return False
    kept, taken = reversed(apart.inputs) if sign else apart.inputs
    value = kept.tensor
    if taken is not carrier or not value.requires_grad or not _comes_from(carrier, kept):
        return False
    ones = torch.ones_like(carrier.tensor)
    grads = torch.autograd.grad(carrier.tensor, value, ones, retain_graph=True, allow_unused=True)
    return grads[0] is None


def _verb(call: Call) -> str:
    return call.op.name.rpartition(".")[2]


def _comes_from(value: Value, source: Value) -> bool:
    """Say whether a value is computed from another one, by any way: also by one that no gradient goes."""
    seen: set[int] = set()
    left = [value]
    while left:
        one = left.pop()
        if one is source:
            return True
        if id(one) in seen or one.maker is None:
            continue
        seen.add(id(one))
        left += one.maker.inputs
    return False
