"""Inputs that are longer by padding, and the part of an output that belongs to the shorter one."""

from __future__ import annotations

import torch


def padded(tensor: torch.Tensor, dim: int, extra: int, value: float, side: str) -> torch.Tensor:
    """Return a tensor with ``extra`` more entries of one value along a dimension, ``right`` or ``left`` of its own."""
    shape = list(tensor.shape)
    shape[dim] = extra
    block = (
        torch.full(shape, value, dtype=tensor.dtype, device=tensor.device)
        if tensor.dtype != torch.bool
        else (torch.full(shape, bool(value), dtype=torch.bool, device=tensor.device))
    )
    return torch.cat([tensor, block] if side == "right" else [block, tensor], dim)


def refill(
    longer: torch.Tensor, ids: torch.Tensor, dim: int, extra: int, side: str
) -> torch.Tensor:
    """Return the longer input with real values at the padded positions, to see where they get to."""
    index = torch.arange(extra, device=ids.device) % ids.shape[dim]
    block = ids.index_select(dim, index)
    kept = longer.narrow(dim, 0 if side == "right" else extra, ids.shape[dim])
    return torch.cat([kept, block] if side == "right" else [block, kept], dim)


def own_part(
    tensor: torch.Tensor, longer: torch.Tensor, extra: int, side: str
) -> torch.Tensor | None:
    """Return the part of the longer output that belongs to the shorter one, or None."""
    if tensor.dim() != longer.dim():
        return None
    for dim in range(tensor.dim()):
        if longer.shape[dim] == tensor.shape[dim] + extra:
            longer = longer.narrow(dim, 0 if side == "right" else extra, tensor.shape[dim])
    return longer if longer.shape == tensor.shape else None
