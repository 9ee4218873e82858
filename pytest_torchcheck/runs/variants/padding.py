"""Inputs that are longer by padding, and the part of an output that belongs to the shorter one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ...specs.sequences import Lengths

if TYPE_CHECKING:
    from ...promises import PaddingInvariant
    from ...subject import Subject


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


def exchanged(longer: torch.Tensor, dim: int, extra: int, pad: float, side: str) -> torch.Tensor:
    """Return the longer input with its added contents exchanged among their places; the pad value stays where it is."""
    new = longer.clone()
    block = new.narrow(dim, longer.shape[dim] - extra if side == "right" else 0, extra)
    block[block != pad] = block[block != pad].roll(1)
    return new


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


def real_entries(
    output: torch.Tensor,
    ids: torch.Tensor,
    mask: tuple[str, torch.Tensor] | None,
    promise: PaddingInvariant,
) -> torch.Tensor | None:
    """Return which entries of an output with positions are real, bool; None where all are compared."""
    dim = promise.dim
    if mask is not None and output.dim() > dim and output.shape[:2] == mask[1].shape[:2]:
        return mask[1].bool()
    if output.dim() > dim and output.shape[: dim + 1] == ids.shape[: dim + 1]:
        return ids != promise.pad
    return None


def real_positions(
    ids: torch.Tensor, mask: torch.Tensor | None, promise: PaddingInvariant
) -> torch.Tensor | None:
    """Return which positions are no padding, bool [samples, positions]; None where that is not known."""
    if promise.dim != 1:
        return None
    if mask is not None:
        return mask.bool() if mask.dim() == 2 else None
    return ids != promise.pad if ids.dim() == 2 and not ids.is_floating_point() else None


def lengths_of(subject: Subject, path: str, dim: int) -> list[str]:
    """Return the inputs that tell the model how long each row is, so that anything may stand behind."""
    symbols = [s for s in subject.source.symbols if subject.source.axes(s).get(path) == dim][:1]
    return [
        name
        for name, spec in subject.source.specs.items()
        if isinstance(spec.values, Lengths) and spec.values.longest in symbols
    ]


def follows(subject: Subject, path: str, name: str, dim: int) -> bool:
    """Say whether an input has the same symbol along the padded dimension."""
    for symbol in subject.source.symbols:
        axes = subject.source.axes(symbol)
        if axes.get(path) == dim and axes.get(name) == dim:
            return True
    return False
