"""Tensors that are not plain: of which kind they are, how large, and what of them lies here."""

from __future__ import annotations

import math
from typing import Final

import torch
from torch.nn.parameter import Buffer

from .peek import attribute

COMPARED_AS: Final = {
    **{d: torch.float32 for n in dir(torch) if isinstance(d := getattr(torch, n), torch.dtype)
       and d.is_floating_point and d.itemsize == 1 and not n.endswith("x2")},
    torch.complex32: torch.complex64,
    torch.uint16: torch.int64,
    torch.uint32: torch.int64,
    torch.uint64: torch.float64,
}  # fmt: skip
"""Dtypes that are stored and not computed with, and one that holds their values."""


def kind_of(tensor: torch.Tensor) -> str:
    """Say what makes a tensor one with which torch cannot do everything; empty for a plain one."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter, Buffer):
        return f"a {type(tensor).__name__}"
    if tensor.is_meta:
        return "a tensor on meta"
    if tensor.is_nested:
        return "a nested tensor"
    if tensor.layout != torch.strided:
        return f"a {str(tensor.layout).removeprefix('torch.')} tensor"
    if tensor.is_quantized or tensor.dtype in COMPARED_AS:
        return f"a tensor of {tensor.dtype}"
    return ""


def here(tensor: torch.Tensor) -> torch.Tensor:
    """Return the part of a distributed tensor that this process holds, which may be written to; any other as it is."""
    if type(tensor) in (torch.Tensor, torch.nn.Parameter):
        return tensor
    local = attribute(tensor, "to_local")
    return tensor if local is None else local()


def shape_of(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return a tensor's shape; of a nested one that to which it is padded, which is the same in each run."""
    if not tensor.is_nested:
        return tuple(tensor.shape)
    parts = [part.shape for part in tensor.detach().unbind()]
    return (len(parts), *map(max, zip(*parts, strict=True)))


def finite(tensor: torch.Tensor) -> bool:
    """Say whether all numbers of a dense tensor are finite: by its extremes, in a tenth of the time of asking each."""
    if not tensor.is_floating_point() or tensor.dtype in COMPARED_AS or not tensor.numel():
        return bool(torch.isfinite(tensor).all())
    return all(math.isfinite(extreme) for extreme in tensor.detach().aminmax())
