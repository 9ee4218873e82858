"""Calls with a gradient that keep their value while their operands move: surrogates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..recorded.watch import Op, Watch, name_of, readable, tensors_in

if TYPE_CHECKING:
    from collections.abc import Callable

_FLAT = frozenset(
    {
        "round", "floor", "ceil", "trunc", "sign", "fix", "sgn", "clamp", "clamp_min", "clamp_max", "clip",
        "relu", "relu6", "hardtanh", "hardsigmoid", "threshold", "zeros_like", "ones_like", "full_like", "dropout",
        "detach", "mul", "where", "masked_fill",
    }
)  # fmt: skip
"""Operations whose gradient is zero where they are flat: no surrogate."""
_SAME = 1e-12  # relative: a sum of the same values in another order
_MOVED = 1e-9


@dataclass(frozen=True, slots=True)
class _Seen:
    op: Op
    value: tuple[float, float]
    operands: tuple[tuple[float, float], ...]


class Held(Watch):
    """Notes two projections of the value and the operands of each call with a gradient."""

    def __init__(self, module: Any = None) -> None:
        super().__init__(module)
        self.calls: list[_Seen] = []

    def after(
        self, func: Callable[..., Any], args: Any, kwargs: Any, result: Any, token: Any
    ) -> None:
        """See one call."""
        name = name_of(func)
        if name.rpartition(".")[2].strip("_") in _FLAT or not isinstance(result, Tensor):
            return
        operands = [t for t in tensors_in((args, kwargs)) if _live(t)]
        if _live(result) and operands:
            sums = tuple(_sums(t) for t in operands)
            self.calls.append(_Seen(self.op(name), _sums(result), sums))


def _live(tensor: Tensor) -> bool:
    return tensor.requires_grad and tensor.is_floating_point() and readable(tensor)


def _sums(tensor: Tensor) -> tuple[float, float]:
    """Return two projections; a plain sum is blind behind a normalisation."""
    values = tensor.detach().to(torch.float64).flatten()
    place = torch.arange(values.numel(), dtype=torch.float64, device=values.device)
    return float((values * (1.7 * place).cos()).sum()), float((values * (2.3 * place).sin()).sum())


def held_between(here: Held, there: Held) -> list[Op]:
    """Return the calls of two runs that kept their value though an operand moved."""
    if [seen.op.name for seen in here.calls] != [seen.op.name for seen in there.calls]:
        return []
    found = []
    for first, second in zip(here.calls, there.calls, strict=True):
        kept = all(_apart(a, b) <= _SAME for a, b in zip(first.value, second.value, strict=True))
        moved = any(
            _apart(a, b) > _MOVED
            for one, other in zip(first.operands, second.operands, strict=False)
            for a, b in zip(one, other, strict=True)
        )
        if kept and moved and any(first.value):
            found.append(first.op)
    return found


def _apart(first: float, second: float) -> float:
    return abs(first - second) / max(abs(first), abs(second), 1e-300)
