"""How far parameters and buffers moved, and digests of them."""

from __future__ import annotations

import math
import zlib
from typing import Any

import torch
from torch import nn

from ...data.contents import raw_bytes


def checksums(model: nn.Module) -> dict[str, int]:
    """Return a checksum of the bits of every parameter and buffer."""
    return digests(dict((*model.named_parameters(), *model.named_buffers())))


def digests(tensors: dict[str, torch.Tensor]) -> dict[str, int]:
    """Return a checksum of the bits of every strided tensor on the CPU."""
    return {
        name: zlib.crc32(raw_bytes(tensor), hash((tensor.dtype, tensor.shape)) & 0xFFFFFFFF)
        for name, tensor in tensors.items()
        if tensor.device.type == "cpu" and tensor.layout == torch.strided
    }


def number_of(value: Any) -> float:
    """Return a loss as a number, NaN where it is none."""
    if isinstance(value, torch.Tensor):
        return float(value.detach().float().mean()) if value.numel() else math.nan
    if isinstance(value, int | float):
        return float(value)
    return math.nan


def largest_of(tensor: torch.Tensor) -> float:
    """Return the largest magnitude in a tensor; 0 for an empty one."""
    if not tensor.numel():
        return 0.0
    if tensor.is_complex():
        return float(tensor.abs().max())
    low, high = torch.aminmax(tensor)  # NaN wins both
    return max(abs(float(low)), abs(float(high)))


_CHUNK = 2**20
"""Elements that are compared at a time: the difference of two large tensors is as large as they are."""


def change_of(after: torch.Tensor, before: torch.Tensor) -> float:
    """Return ``max|after - before|`` of two tensors of one shape; NaN where an element is."""
    small = after.numel() <= _CHUNK
    if small or not (after.is_contiguous() and before.is_contiguous()):
        return largest_of(after - before)
    pairs = zip(after.view(-1).split(_CHUNK), before.view(-1).split(_CHUNK), strict=True)
    return max((largest_of(now - then) for now, then in pairs), key=lambda n: (math.isnan(n), n))
