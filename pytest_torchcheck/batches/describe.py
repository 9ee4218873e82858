"""One line about a tensor and how it lies in memory, and the same values lying otherwise."""

from __future__ import annotations

from collections import Counter
from typing import Literal, get_args

import torch
from torch import Tensor

MAX_ODD = 3
"""Elements that are named one by one when all others are equal."""


def describe_tensor(tensor: Tensor, name: str = "x") -> str:
    """Describe a tensor in one line.

    Args:
        tensor: Any tensor; read only.
        name: What to call it where single elements are named.

    Returns:
        Such as ``float32[2, 3, 17, 16] in [-3.1, 2.9]`` or ``float32[1, 4], all zero but x[0, 2] =
        inf``.
    """
    head = f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
    layout = _layout(tensor)
    device = "" if tensor.device.type == "cpu" else f" on {tensor.device}"
    return (
        head
        + device
        + layout
        + _values(tensor, name)
        + (", requires grad" if tensor.requires_grad else "")
    )


def _layout(tensor: Tensor) -> str:
    if tensor.is_nested:
        return " nested"
    if tensor.layout != torch.strided:
        return f" {str(tensor.layout).removeprefix('torch.')}"
    if tensor.numel() <= 1:
        return ""
    if tensor.is_contiguous():
        return f" at offset {tensor.storage_offset()}" if tensor.storage_offset() else ""
    if tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last):
        return " channels_last"
    if any(
        stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True)
    ):
        return " expanded"
    return " non-contiguous"


def _values(tensor: Tensor, name: str) -> str:
    if tensor.device.type == "meta" or tensor.is_nested or not tensor.numel():
        return ""
    plain = tensor.detach()
    if plain.layout != torch.strided:
        plain = plain.to_dense()
    plain = plain.cpu()
    if plain.is_floating_point() and plain.dtype.itemsize == 1:
        plain = plain.float()  # eight bits can be stored, not compared
    if plain.numel() == 1:
        return f" = {_number(plain.reshape(()))}"
    common = _common(plain)
    if common is not None:
        odd = (plain != common).nonzero()
        if not len(odd):
            return f", all {_number(common)}"
        if len(odd) <= MAX_ODD and len(odd) * 2 < plain.numel():
            listed = (f"{name}{tuple_text(i)} = {_number(plain[tuple(i)])}" for i in odd.tolist())
            return f", all {_number(common)} but {', '.join(listed)}"
    if plain.dtype == torch.bool:
        return f", {int(plain.sum())} of {plain.numel()} true"
    if plain.is_complex():
        return f" of magnitude up to {plain.abs().max().item():.3g}"
    finite = plain[plain.isfinite()] if plain.is_floating_point() else plain
    bad = plain.numel() - finite.numel()
    if not finite.numel():
        return ", all nan" if bool(plain.isnan().all()) else ", none finite"
    low, high = finite.min().item(), finite.max().item()
    span = f" in [{low:.3g}, {high:.3g}]" if plain.is_floating_point() else f" in {low}..{high}"
    return span + (f", {bad} not finite" if bad else "")


def _common(plain: Tensor) -> Tensor | None:
    """The value that all but a few elements have, if there is one; None otherwise.

    Of so many elements in fixed places the most frequent is it, if at most `MAX_ODD` of all are others.
    """
    places = range(0, plain.numel(), max(1, plain.numel() // (2 * MAX_ODD + 1)))
    few = plain.reshape(-1)[list(places)]
    value, _ = Counter(few.tolist()).most_common(1)[0]
    found = [element for element in few if element.item() == value]  # a NaN equals nothing
    return found[0] if found else None


def _number(value: Tensor) -> str:
    number = value.item()
    if isinstance(number, bool):
        return str(number).lower()
    if number == 0 and not str(number).startswith("-"):
        return "zero" if value.dtype.is_floating_point else "0"
    return f"{number:.6g}" if isinstance(number, float) else str(number)


def tuple_text(index: list[int]) -> str:
    """An index as it is written: ``[0, 0, 16, 0]``; nothing for a scalar."""
    return f"[{', '.join(map(str, index))}]" if index else ""


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
