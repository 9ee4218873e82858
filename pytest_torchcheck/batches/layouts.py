"""The same values lying otherwise in memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import torch
from torch import Tensor

from pytest_torchcheck.batches.batch import Batch, Layout

LAYOUTS: tuple[Layout, ...] = get_args(Layout)
"""Every layout, the simplest first."""


def relayout(batch: Batch, kind: Layout) -> Batch:
    """A copy of the batch whose inputs lie otherwise in memory; targets are left alone.

    Args:
        batch: Its tensors are not changed.
        kind: ``contiguous``; ``non_contiguous`` has gaps along the last axis; ``expanded`` repeats row 0 with stride 0 (the only kind
            that changes values); ``offset`` does not start at the beginning of its storage; ``channels_last`` concerns images
            and volumes, other tensors become contiguous.

    Raises:
        ValueError: There is no such layout.
    """
    if kind not in LAYOUTS:
        raise ValueError(f"layout {kind!r}; allowed: {', '.join(LAYOUTS)}")

    def change(_path: str, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or leaf.layout != torch.strided or leaf.is_nested:
            return leaf
        changed = relayout_tensor(leaf.detach(), kind)
        return changed.requires_grad_() if leaf.requires_grad else changed

    return replace(batch.map(change, targets=False), layout=kind)


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
