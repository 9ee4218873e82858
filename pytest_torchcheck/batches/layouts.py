"""The same values lying otherwise in memory."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

Layout = Literal["contiguous", "non_contiguous", "expanded", "offset", "channels_last"]

LAYOUTS: tuple[Layout, ...] = get_args(Layout)
"""Every layout, the simplest first."""


def relayout_tensor(tensor: Tensor, kind: Layout) -> Tensor:
    """See `relayout`; always fresh memory."""
    if kind == "non_contiguous" and tensor.dim() and tensor.numel():
        holder = tensor.new_zeros((*tensor.shape[:-1], 2 * tensor.shape[-1]))
        holder[..., ::2] = tensor
        return holder[..., ::2]
    if kind == "expanded" and tensor.dim() and tensor.shape[0] > 1:
        return tensor[:1].contiguous().clone().expand(tensor.shape)
    if kind == "offset":
        holder = tensor.new_zeros(tensor.numel() + 3)
        holder[3:] = tensor.reshape(-1)
        return holder[3:].view(tensor.shape)
    if kind == "channels_last" and tensor.dim() in (4, 5):
        form = torch.channels_last if tensor.dim() == 4 else torch.channels_last_3d
        return tensor.clone(memory_format=torch.contiguous_format).contiguous(memory_format=form)
    return tensor.clone(memory_format=torch.contiguous_format)
