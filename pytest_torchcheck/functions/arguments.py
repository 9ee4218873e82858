"""Arguments for a check: small, distinct and in the range of the ones that were seen."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .calls import Call, is_float
from .relations.jacobians import real_size

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

LARGE = 40
"""Real entries of one tensor above which it is cut down (CHECKS: at most about 30)."""


def redrawn(call: Call, seed: int) -> Call:
    """Return the call with new floating values in the ranges of the old ones; the rest stays.

    The range is kept because it may be a domain (positive, probabilities): a constant tensor gets
    values around its own. Integers, masks and everything else stay as they are.
    """
    generator = torch.Generator().manual_seed(0x7C4EC + seed)
    return call.with_values(_redraw(value, generator) for value in call.values)


def jittered(call: Call, seed: int) -> Call:
    """Return the call with every floating value moved by a few percent of its tensor's spread."""
    generator = torch.Generator().manual_seed(0x11773 + seed)

    def move(value: object) -> object:
        if not isinstance(value, Tensor) or not is_float(value) or value.numel() == 0:
            return value
        spread = float(value.abs().max()) or 1.0
        noise = torch.rand(value.shape, generator=generator, dtype=torch.float64) * 2 - 1
        return value + (0.02 * spread * noise).to(value)

    return call.with_values(move(value) for value in call.values)


def symmetric(call: Call) -> list[int]:
    """Return the places of square matrices, batched or not, that equal their transpose."""
    return [
        place
        for place, value in enumerate(call.values)
        if isinstance(value, Tensor)
        and is_float(value)
        and value.dim() > 1
        and value.shape[-1] == value.shape[-2] > 1
        and bool(torch.equal(value, value.mT))
    ]


def symmetrised(call: Call, places: Collection[int]) -> Call:
    """Return the call with the matrices at some places replaced by the mean of them and their transpose."""
    return call.with_values(
        0.5 * (value + value.mT) if place in places and isinstance(value, Tensor) else value
        for place, value in enumerate(call.values)
    )


def degenerate(call: Call) -> str | None:
    """Say why these values are weak for a gradient check, or None.

    Constant tensors hide missing factors, equal ones hide exchanged gradients.
    """
    tensors = [(call.names[i], call.values[i]) for i in call.wanted]
    for name, tensor in tensors:
        if tensor.numel() > 1 and bool((tensor == tensor.reshape(-1)[0]).all()):
            return f"{name} is constant"
    for i, (name, tensor) in enumerate(tensors):
        for other, second in tensors[i + 1 :]:
            if tensor.shape == second.shape and bool(torch.equal(tensor, second)):
                return f"{name} equals {other}"
    return None


def reductions(call: Call, *, tiny: bool = False) -> Iterator[Call]:
    """Yield smaller versions of a call, the smallest first; equal sizes stay equal.

    Sizes up to 3 stay; larger ones become 4, 5, ... in their order. Integer arguments that equal a
    size follow it in the first version and stay in the second; then come versions in which sizes
    become 2 or 3 (first of all where ``tiny``), and one in which only the first axis is cut. Nothing is
    promised: the caller must see whether the smaller call still runs.
    """
    tensors = [value for value in call.values if isinstance(value, Tensor)]
    sizes = sorted({size for tensor in tensors for size in tensor.shape})
    new: dict[int, int] = {}
    last = 3
    for size in sizes:
        new[size] = size if size <= 3 else min(size, last + 1)
        last = max(last, new[size])
    least = {size: min(size, 2 if size < 8 else 3) for size in sizes}
    first = {tensor.shape[0] for tensor in tensors if tensor.dim() > 1}
    batch = {size: min(size, 2) if size in first else size for size in sizes}
    versions = [(new, True), (new, False), (least, False), (batch, False)]
    if tiny:
        versions.insert(0, (least, True))
    for table, integers in versions:
        smaller = call.with_values(_cut(value, table, integers=integers) for value in call.values)
        if any(_size(a) != _size(b) for a, b in zip(smaller.values, call.values, strict=True)):
            yield smaller


def resized(call: Call, size: int, other: int) -> Call:
    """Return the call with every axis of a size cut to another one."""
    sizes = {s for value in call.values if isinstance(value, Tensor) for s in value.shape}
    table = {s: other if s == size else s for s in sizes}
    return call.with_values(_cut(value, table, integers=False) for value in call.values)


def is_large(call: Call) -> bool:
    """Say whether a full Jacobian deserves smaller inputs."""
    return any(
        real_size(value) > LARGE
        for value in call.values
        if isinstance(value, Tensor) and is_float(value)
    )


def _size(value: object) -> int:
    return value.numel() if isinstance(value, Tensor) else -1


def _cut(value: object, table: Mapping[int, int], *, integers: bool) -> object:
    if isinstance(value, bool) or not isinstance(value, (int, Tensor)):
        return value
    if isinstance(value, int):
        return table.get(value, value) if integers and value > 3 else value
    cut = value[tuple(slice(0, table[size]) for size in value.shape)]
    if is_float(value) or value.dtype == torch.bool or value.numel() == 0:
        return cut.clone()
    bound = int(value.max())
    reach = [size for size in table if size > bound]
    if bound > 0 and reach and table[min(reach)] < min(reach):
        return cut % table[min(reach)]  # indices into an axis that became shorter
    return cut.clone()


def _redraw(value: object, generator: torch.Generator) -> object:
    if not isinstance(value, Tensor) or not is_float(value) or value.numel() == 0:
        return value
    if value.is_complex():
        parts = torch.view_as_real(value.resolve_conj())
        return torch.view_as_complex(_draw(parts, generator).contiguous())
    return _draw(value, generator)


def _draw(value: Tensor, generator: torch.Generator) -> Tensor:
    finite = value[value.isfinite()]
    low, high = (float(finite.min()), float(finite.max())) if finite.numel() else (-1.0, 1.0)
    if high - low <= 1e-6 * max(abs(low), abs(high)):
        middle = 0.5 * (low + high)
        width = 0.4 * abs(middle) or 1.0
        low, high = middle - width, middle + width
    drawn = torch.rand(value.shape, generator=generator, dtype=torch.float64)
    return (low + (high - low) * drawn).to(value)
