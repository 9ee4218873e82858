"""Tensors and weights so small that a text file holds them: a few numbers of each, the same on every machine."""

from __future__ import annotations

import math
import zlib
from typing import TYPE_CHECKING, Any, Final

import torch

from ..objects import trees
from .sketch import Sketch, sketch, without_fill

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

SUMS: Final = 3
"""Sums of all elements under signs, over the square root of their number: every element counts."""
FEW: Final = 3
"""Elements that are kept as they are, for readers."""
_MASK: Final = 0xFFFFFFFF
_CONSTANT: Final = 0.05  # spread of what is initialised with one value, beside that value
_ZERO: Final = 0.02  # of what is initialised with zeros


def little(tensor: torch.Tensor) -> Sketch:
    """Describe a tensor by its digest, its largest magnitude, three signed sums and three elements."""
    whole = sketch(tensor)
    flat = without_fill(trees.dense(tensor).detach().cpu().reshape(-1))
    wide = torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat
    wide = wide.double()
    count = max(wide.numel(), 1)
    sums = [
        float((wide * _uniform(f"sign {index}", wide.numel()).sign()).sum()) / math.sqrt(count)
        for index in range(SUMS)
    ]
    few = wide[:: max(1, math.ceil(count / FEW))][:FEW].tolist()
    values = torch.tensor([*sums, *few], dtype=torch.float64)
    return Sketch(
        shape=whole.shape, dtype=whole.dtype, digest=whole.digest, scale=whole.scale, values=values
    )


def line_of(one: Sketch | None) -> list[Any] | None:
    """Return a sketch of :func:`little` as a short list: what it is, digest, largest magnitude, numbers."""
    if one is None:
        return None
    numbers = [float(f"{value:.13g}") for value in (one.scale, *one.values.tolist())]
    return [f"{one.dtype} {list(one.shape)}", one.digest, *numbers]


def sketch_of(line: Any) -> Sketch | None:
    """Read what :func:`line_of` wrote.

    Raises:
        ValueError: It has another form.
    """
    if line is None:
        return None
    if not isinstance(line, list) or len(line) < 3 or not all(isinstance(t, str) for t in line[:2]):
        raise ValueError(f"{line!r} does not describe a tensor")
    dtype, shape = kind_of(line[0])
    values = torch.tensor([float(value) for value in line[3:]], dtype=torch.float64)
    return Sketch(shape=shape, dtype=dtype, digest=line[1], scale=float(line[2]), values=values)


def kind_of(text: str) -> tuple[str, tuple[int, ...]]:
    """Return dtype and shape of a text such as ``float32 [4, 5]``.

    Raises:
        ValueError: It has another form.
    """
    dtype, _, rest = text.partition(" ")
    if (
        not isinstance(getattr(torch, dtype, None), torch.dtype)
        or rest[:1] != "["
        or rest[-1:] != "]"
    ):
        raise ValueError(f"{text!r} is not a dtype and shape such as 'float32 [4, 5]'")
    return dtype, tuple(int(size) for size in rest[1:-1].split(",") if size.strip())


def start_of(parameter: torch.Tensor) -> list[float] | None:
    """Return mean and standard deviation of a parameter to six digits; None where it holds no such numbers."""
    if not parameter.numel() or not trees.computable(parameter.data):
        return None
    if not parameter.is_floating_point():
        return None
    wide = parameter.detach().double()
    return [float(f"{float(v):.6g}") for v in (wide.mean(), wide.std(correction=0))]


def weight(name: str, shape: tuple[int, ...], dtype: str, start: list[float]) -> torch.Tensor:
    """Return values for a parameter that its name and its initial mean and deviation decide, on every machine.

    They are spread evenly, so that they stay within the bounds of a uniform initialisation. No generator
    of torch is asked: its floating draws differ in their last bits between processors.
    """
    mean, spread = (float(value) for value in start)
    spread = spread or _CONSTANT * abs(mean) or _ZERO
    values = mean + math.sqrt(3) * spread * _uniform(name, math.prod(shape))
    return values.to(getattr(torch, dtype)).reshape(shape)


def weights(
    lines: Mapping[str, Any], starts: Mapping[str, Any], model: nn.Module
) -> dict[str, Any]:
    """Return the state dict of a record: drawn parameters, and buffers as the model has them now.

    Args:
        lines: Dtype and shape of each entry; ``= name`` behind them names the parameter that it is tied to.
        starts: Mean and deviation of each parameter.
        model: Whose other entries are taken over, zeros where it has none of that shape.
    """
    now: dict[str, Any] = {**dict(model.named_buffers()), **model.state_dict()}
    made: dict[str, Any] = {}
    for name, text in lines.items():
        kind, _, tied = text.partition(" = ")
        if " " not in kind:  # an extra state that is no tensor
            made[name] = now.get(name)
            continue
        dtype, shape = kind_of(kind)
        start = starts.get(tied or name)
        if start is not None:
            made[name] = weight(tied or name, shape, dtype, start)
            continue
        here = now.get(name)
        fits = isinstance(here, torch.Tensor) and tuple(here.shape) == shape
        made[name] = here if fits else torch.zeros(shape, dtype=getattr(torch, dtype))
    return made


def _uniform(name: str, count: int) -> torch.Tensor:
    """Return numbers of [-1, 1) in float64 that only a name decides, by whole-number arithmetic."""
    x = torch.arange(count, dtype=torch.int64) * 0x9E3779B9 + zlib.crc32(name.encode())
    x = x & _MASK
    for shift, factor in ((16, 0x21F0AAAD), (15, 0x735A2D97)):
        x = ((x ^ (x >> shift)) * factor) & _MASK
    x = x ^ (x >> 15)
    return (x.double() + 0.5) / 2**31 - 1
