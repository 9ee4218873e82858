"""What a tensor held, in little: its digest tells equal bits, and some of its elements how far others are."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import torch

from ..lean import dataclass
from ..objects import trees
from ..probes.recorded.operations import fingerprint

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST: Final = 16384
"""Elements of a tensor that are kept; of a larger one, those at fixed places drawn once for its size."""
_FILL: Final = 1e4
"""Least magnitude of a masking constant."""
_ABOVE: Final = 1e3
"""Times the largest other magnitude that a masking constant is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sketch:
    """A tensor in little.

    Attributes:
        shape: Its shape.
        dtype: Its dtype, such as ``float32``.
        digest: 64-bit hash of its bytes, as hexadecimal digits; the same on every machine of one
            byte order.
        scale: Largest finite magnitude of its elements, see :func:`without_fill`.
        values: Up to :data:`MOST` of these, flat.
    """

    shape: tuple[int, ...]
    dtype: str
    digest: str
    scale: float
    values: torch.Tensor

    def plain(self) -> dict[str, Any]:
        """Return what ``torch.load`` reads with ``weights_only=True``."""
        return {
            "shape": list(self.shape), "dtype": self.dtype, "digest": self.digest,
            "scale": self.scale, "values": self.values,
        }  # fmt: skip

    @classmethod
    def of_plain(cls, data: Mapping[str, Any]) -> Sketch:
        """Rebuild a sketch from :meth:`plain`."""
        return cls(**{**data, "shape": tuple(data["shape"])})

    def same(self, other: Sketch) -> bool:
        """Say whether both tensors hold the same bits."""
        mine, theirs = (
            (self.shape, self.dtype, self.digest),
            (other.shape, other.dtype, other.digest),
        )
        return mine == theirs

    def gap(self, other: Sketch, least: float = 0.0) -> float:
        """Return the largest difference over the largest magnitude; inf for another shape or a lone NaN.

        Args:
            other: The other tensor in little.
            least: Magnitude below which values are rounding: of a gradient that is zero but for
                rounding, others decide.
        """
        if self.shape != other.shape:
            return float("inf")
        if self.digest == other.digest and self.dtype == other.dtype:
            return 0.0
        distance = trees.worst(self.values, other.values)
        largest = max(self.scale, other.scale, least)
        if distance == 0.0:
            return 0.0
        return distance / largest if largest else float("inf")


def sketch(tensor: torch.Tensor) -> Sketch:
    """Describe a tensor in little; what is kept is a copy on the CPU."""
    values = trees.dense(tensor).cpu().contiguous()
    flat = values.reshape(-1)
    near = without_fill(flat)
    kept = near if near.numel() <= MOST else near[_places(near.numel())]
    return Sketch(
        shape=tuple(tensor.shape) if not tensor.is_nested else tuple(values.shape),
        dtype=str(tensor.dtype).removeprefix("torch."),
        digest=digest_of(flat),
        scale=trees.scale(near),
        values=kept.clone(),
    )


def without_fill(values: torch.Tensor) -> torch.Tensor:
    """Return values with a masking constant, such as -1e9, brought near the others.

    Beside it no change of the others would count. It is what two elements or more have, within a
    hundredth, that is a thousand times as large as all others; its logarithm takes its place.
    """
    if not values.is_floating_point() or not values.numel():
        return values
    size = values.abs().double()
    top = trees.scale(size)
    fill = size.isfinite() & (size > 0.99 * top)
    rest = trees.scale(size[~fill])
    if top < max(_FILL, _ABOVE * rest) or not rest or int(fill.sum()) < 2:
        return values
    return torch.where(fill, values.sign().double() * rest * math.log10(top), values.double())


def _places(size: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(size)
    return torch.randint(size, (MOST,), generator=generator)


def digest_of(tensor: torch.Tensor) -> str:
    """Return the digest of a dense tensor on the CPU."""
    return f"{fingerprint(tensor) & (2**64 - 1):016x}"
