"""Recipes: plain numbers that say all about a drawn batch, so that it can be made again and made simpler."""

from __future__ import annotations

import math
from dataclasses import field
from operator import le
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor

from ..lean import dataclass
from ..specs.domains import Domain, Normal, Unit
from ..specs.noise import Stream
from .read import is_dense

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..specs.tensors import TensorSpec
    from .describe import Layout

Edge = Literal[
    "plain", "zeros", "constant", "large", "tiny", "subnormal", "negative-zero", "nan", "infinity"
]
EDGES: tuple[Edge, ...] = get_args(Edge)
"""What may be special about the values of a batch; ``plain`` is nothing."""

FINITE_EDGES: tuple[Edge, ...] = EDGES[: EDGES.index("nan")]


Bits = tuple[bool | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One drawn batch.

    Attributes:
        sizes: Of symbols; those that are missing are comfortable.
        seed: Of the values.
        layout: How the inputs lie in memory.
        dtype: Of floating tensors, in place of their specs' own.
        dtypes: Of single tensors, by path: one of their specs' dtypes.
        device: Where the batch is.
        requires_grad: Whether floating inputs ask for a gradient; None leaves that to their specs.
        edge: What is special about the values.
        keep: By path, which units keep their drawn values: those whose number has these bits, the
            lowest first; a bit that is None may be either. All others are the simplest; None keeps
            nothing. All is kept where a path is missing.
    """

    sizes: Mapping[str, int] = field(default_factory=dict)
    seed: int = 0
    layout: Layout = "contiguous"
    dtype: torch.dtype | None = None
    dtypes: Mapping[str, torch.dtype] = field(default_factory=dict)
    device: str = "cpu"
    requires_grad: bool | None = None
    edge: Edge = "plain"
    keep: Mapping[str, Bits | None] = field(default_factory=dict)


def units(tensor: Tensor, unit: Unit) -> int:
    """How many parts of a tensor can be made simple on their own."""
    if unit == "whole":
        return 1
    if unit == "row" and tensor.dim():
        return math.prod(tensor.shape[:-1])
    return tensor.numel()


def kept(drawn: Tensor, simplest: Tensor, start: int, stop: int, unit: Unit) -> Tensor:
    """Mix: drawn values in a run of units, the simplest ones elsewhere.

    Args:
        drawn: The values to keep.
        simplest: The other ones; of the same shape.
        start: First unit that is kept, in C order.
        stop: One after the last; nothing is kept if ``stop <= start``.
        unit: What one unit is.
    """
    if unit == "whole":
        return drawn if stop > start else simplest
    size = drawn.shape[-1] if unit == "row" and drawn.dim() else 1
    made = simplest.detach().clone(memory_format=torch.contiguous_format)
    if stop > start:
        flat, source = made.view(-1), drawn.detach().reshape(-1)
        flat[start * size : stop * size] = source[start * size : stop * size]
    return made.requires_grad_(drawn.requires_grad)


def kept_by_bits(
    drawn: Tensor,
    simplest: Tensor,
    bits: Bits | None,
    unit: Unit,
    grid: tuple[int, ...] | None = None,
) -> Tensor:
    """Mix: drawn values in the units whose number has these bits, the simplest ones elsewhere.

    Unlike the ends of a run, bits do not depend on each other: whatever single unit matters, fixing
        one more of its bits keeps it.

    Args:
        drawn: The values to keep.
        simplest: The other ones; of the same shape.
        bits: See `Recipe`.
        unit: What one unit is.
        grid: A shape of which this one is a corner: units are numbered as they stand there, so that
            they keep their numbers when sizes shrink.
    """
    if bits is None or unit == "whole":
        return simplest if bits is None else drawn
    shape = tuple(drawn.shape)
    wide = shape
    if grid is not None and len(grid) == len(shape) and all(map(le, shape, grid)):
        wide = grid
    if unit == "row" and shape:
        shape, wide = shape[:-1], wide[:-1]
    number = torch.zeros(shape, dtype=torch.int64)
    for axis, size in enumerate(shape):
        place = torch.arange(size) * math.prod(wide[axis + 1 :])
        number += place.view(-1, *(1 for _ in shape[axis + 1 :]))
    number = number.to(drawn.device)
    keep = torch.ones_like(number, dtype=torch.bool)
    for shift, bit in enumerate(bits):
        if bit is not None:
            keep &= (number >> shift) & 1 == int(bit)
    if unit == "row" and drawn.dim():
        keep = keep.unsqueeze(-1)
    return torch.where(keep, drawn.detach(), simplest.detach()).requires_grad_(drawn.requires_grad)


def with_edge(
    edge: Edge, drawn: Any, simplest: Callable[[], Any], spec: TensorSpec | None, seed: int
) -> Any:
    """Make the values of one drawn tensor special, in place where that is possible.

    Args:
        edge: In which way.
        drawn: The tensor.
        simplest: Makes its simplest form.
        spec: Its spec; scales and special numbers concern normal and undeclared values only, so
            that no value leaves the domain that was declared.
        seed: Decides where a single special element stands.
    """
    if edge == "plain" or not is_dense(drawn) or not drawn.numel():
        return drawn
    if spec is not None and spec.unit == "whole":
        return drawn
    if edge == "zeros" or (edge == "constant" and drawn.dtype == torch.bool):
        return simplest()  # a mask that is false everywhere masks all
    with torch.no_grad():
        if edge == "constant":
            if spec is not None and spec.unit == "row":
                rows = drawn.view(-1, drawn.shape[-1])
                return drawn.copy_(rows[0].expand(drawn.shape).clone())
            return drawn.fill_(drawn.reshape(-1)[0].item())
        return _scaled(edge, drawn, spec.values if spec is not None else None, seed)


def _scaled(edge: Edge, drawn: Tensor, domain: Domain | None, seed: int) -> Tensor:
    ends = domain.ends if domain is not None else None
    if ends is not None and edge in ("large", "tiny"):
        return drawn.fill_(ends[1] if edge == "large" else ends[0])
    if not drawn.is_floating_point() or not (domain is None or isinstance(domain, Normal)):
        return drawn
    info = torch.finfo(drawn.dtype)
    if edge == "large":
        return drawn.mul_(min(1e4, info.max / 64))
    if edge == "tiny":
        return drawn.mul_(max(1e-6, info.smallest_normal * 64))
    if edge == "subnormal":
        return drawn.mul_(info.smallest_normal / 8)
    if edge == "negative-zero":
        return drawn.fill_(-0.0)
    place = Stream(seed).below(drawn.numel())
    drawn.view(-1)[place] = math.nan if edge == "nan" else math.inf
    return drawn
