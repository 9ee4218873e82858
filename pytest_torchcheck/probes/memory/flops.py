"""Formulas of floating-point operations: torch's own, and those of the CPU's kernels that it lacks."""

from __future__ import annotations

from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable


@cache
def formulas() -> dict[Any, Callable[..., int]]:
    """Return the formula of every counted operation; a multiply-add is two.

    Source:
        ``torch.utils.flop_counter`` (matrix products, convolutions, fused attention). On the CPU fused
        attention and LSTM layers are operations of their own, which torch 2.13 counts as zero: attention
        gets torch's formula, an LSTM layer two operations per weight and time step, and twice that
        backward.
    """
    from torch.utils import flop_counter as counter

    found: dict[Any, Callable[..., int]] = dict(counter.flop_registry)
    aten = torch.ops.aten
    for name, known in (
        ("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention"),
        (
            "_scaled_dot_product_flash_attention_for_cpu_backward",
            "_scaled_dot_product_flash_attention_backward",
        ),
    ):
        packet, model = getattr(aten, name, None), getattr(aten, known, None)
        if packet is not None and packet not in found and model in found:
            found[packet] = found[model]
    for name, factor in (("mkldnn_rnn_layer", 2), ("mkldnn_rnn_layer_backward", 4)):
        packet = getattr(aten, name, None)
        if packet is not None and packet not in found:
            found[packet] = _recurrent(factor)
    return found


def _recurrent(factor: int) -> Callable[..., int]:
    def count(input: Any, weight_ih: Any, weight_hh: Any, *rest: Any, **named: Any) -> int:
        steps = prod(input.shape[:-1])  # time steps of all samples
        return int(factor * steps * (weight_ih.numel() + weight_hh.numel()))

    return count
