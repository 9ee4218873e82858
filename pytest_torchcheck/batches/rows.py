"""Rows of tensors of any layout: taken out, and exchanged for those of another tensor."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..objects import trees


def take_rows(tensor: Tensor, axis: int, index: Tensor) -> Tensor:
    """Take rows along an axis out of a tensor, in this order; detached, in its own layout.

    A nested tensor is made again of its parts, and a layout that cannot be indexed by way of a
    dense copy.

    Args:
        tensor: Any tensor.
        axis: The axis; 0 of a nested tensor.
        index: int64, which rows.
    """
    tensor, index = tensor.detach(), index.to(tensor.device)
    if tensor.is_nested:
        return _nested_of(tensor, [tensor.unbind()[i] for i in index.tolist()])
    if tensor.layout in (torch.strided, torch.sparse_coo):
        return tensor.index_select(axis, index)
    return tensor.to_dense().index_select(axis, index).to_sparse(layout=tensor.layout)


def choose_rows(keep: Tensor, tensor: Tensor, other: Tensor, axis: int) -> Tensor:
    """Return the rows of one tensor where ``keep`` says so, and those of another elsewhere; detached.

    Args:
        keep: bool, one for each row.
        tensor, other: Tensors of one layout and, but for the lengths of nested parts, of one shape.
        axis: The axis of the rows; 0 of nested tensors.
    """
    tensor, other, keep = tensor.detach(), other.detach().to(tensor.device), keep.to(tensor.device)
    if tensor.is_nested:
        pairs = zip(tensor.unbind(), other.unbind(), strict=True)
        return _nested_of(
            tensor, [a if own else b for own, (a, b) in zip(keep.tolist(), pairs, strict=True)]
        )
    mask = keep.view([-1 if dim == axis else 1 for dim in range(tensor.dim())])
    if tensor.layout == torch.strided:
        return torch.where(mask, tensor, other)
    chosen = torch.where(mask, tensor.to_dense(), other.to_dense())
    return chosen.to_sparse(layout=tensor.layout)


def flat_rows(tensor: Tensor, axis: int) -> Tensor:
    """Return the values of each row along an axis, [rows, values], strided and detached.

    The parts of a nested tensor are filled up with zeros, and their lengths stand beside them.
    """
    if tensor.is_nested:
        parts = [trees.dense(part).reshape(-1) for part in tensor.detach().unbind()]
        lengths = torch.tensor([part.numel() for part in parts], device=tensor.device)
        return torch.cat([pad_sequence(parts, batch_first=True), lengths[:, None]], 1)
    rows = trees.dense(tensor).movedim(axis, 0)
    return rows.flatten(1) if rows.dim() > 1 else rows[:, None]


def _nested_of(like: Tensor, parts: list[Tensor]) -> Tensor:
    made: Tensor = torch.nested.nested_tensor(parts, layout=like.layout, dtype=like.dtype)
    return made
