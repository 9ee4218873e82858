"""Random numbers at the speed of copying memory: the same ones for the same seed, on every machine and in every worker.

Drawing a normal number costs ten times more than reading one. Two fixed pools of 2^20 normal
numbers are made once per process (8 MB, about 10 ms); a tensor is the sum of a window of each, and
the windows come from the seed. The sum of independent normal numbers is normal, and the elements of
a window are independent of each other; two seeds share one of 2^20 windows at most by chance, and
then only by half. Uniform numbers are the sum of two uniform windows modulo 1.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

if TYPE_CHECKING:
    from collections.abc import Iterator

POOL = 1 << 20
WINDOW = 1 << 18
"""Longest run of elements that share one pair of windows."""
_MASK = (1 << 64) - 1
_SEEDS = (0x5EED, 0xF00D, 0xCAFE, 0xBEEF)


class Stream:
    """A few random whole numbers from a seed: SplitMix64, which starts at once where ``random.Random`` takes 20 us.

    Source:
        Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (OOPSLA 2014).
    """

    __slots__ = ("_state",)

    def __init__(self, seed: int) -> None:
        self._state = seed & _MASK

    def below(self, bound: int) -> int:
        """A number in ``[0, bound)``; ``bound`` is far below 2^64, so that no value is favoured."""
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        mixed = self._state
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        return (mixed ^ (mixed >> 31)) % bound


@lru_cache(maxsize=1)
def _normal_pools() -> tuple[Tensor, Tensor]:
    """Two pools of variance 1/2, so that their sum has variance 1."""
    with _plainly():
        first, second = (_pool().normal_(0.0, math.sqrt(0.5), generator=_seeded(i)) for i in (0, 1))
    return first, second


@lru_cache(maxsize=1)
def _uniform_pools() -> tuple[Tensor, Tensor]:
    with _plainly():
        first, second = (_pool().uniform_(generator=_seeded(i)) for i in (2, 3))
    return first, second


@contextmanager
def _plainly() -> Iterator[None]:
    """Pools outlive whoever needs them first: they must be real tensors under fake and inference modes too."""
    with torch.inference_mode(False), torch.no_grad(), _disable_current_modes():
        yield


def _seeded(index: int) -> torch.Generator:
    return torch.Generator("cpu").manual_seed(_SEEDS[index])


def _pool() -> Tensor:
    return torch.empty(POOL + WINDOW, device="cpu", dtype=torch.float32)


def normal(
    shape: tuple[int, ...], dtype: torch.dtype, stream: Stream, grid: tuple[int, ...] | None = None
) -> Tensor:
    """Draw normal numbers of mean 0 and variance 1.

    Args:
        shape: The tensor's shape.
        dtype: ``float32`` or ``float64``.
        stream: Where the windows come from.
        grid: A shape of which this one is a corner, or None: the values are those that stand there
            in a tensor of that shape.
    """
    return _fill(_normal_pools(), shape, dtype, stream, grid)


def uniform(
    shape: tuple[int, ...], dtype: torch.dtype, stream: Stream, grid: tuple[int, ...] | None = None
) -> Tensor:
    """Draw uniform numbers in ``[0, 1)``; arguments as in `normal`."""
    return _fill(_uniform_pools(), shape, dtype, stream, grid).frac_()


def _fill(
    pools: tuple[Tensor, Tensor],
    shape: tuple[int, ...],
    dtype: torch.dtype,
    stream: Stream,
    grid: tuple[int, ...] | None,
) -> Tensor:
    """Add two windows; a tensor of more than `WINDOW` elements has several of each, which are those of its own shape."""
    count = math.prod(shape)
    first, second = pools
    i, j = stream.below(POOL), stream.below(POOL)
    if grid is not None and count and math.prod(grid) <= WINDOW:
        strides = [math.prod(grid[axis + 1 :]) for axis in range(len(grid))]
        one, other = (pool.as_strided(shape, strides, at) for pool, at in ((first, i), (second, j)))
        return _sum(one, other, dtype).contiguous()
    if count <= WINDOW:
        return _sum(first[i : i + count], second[j : j + count], dtype).view(shape)
    values = torch.empty(count, dtype=dtype, device="cpu")
    if type(values) is not Tensor:  # a fake one, which has no values to fill in
        return values.view(shape)
    for start in range(0, count, WINDOW):
        size = min(WINDOW, count - start)
        values[start : start + size] = _sum(first[i : i + size], second[j : j + size], dtype)
        i, j = stream.below(POOL), stream.below(POOL)
    return values.view(shape)


def _sum(one: Tensor, other: Tensor, dtype: torch.dtype) -> Tensor:
    if dtype == torch.float32:
        return one.add(other)
    return one.to(dtype).add_(other)  # full precision, not rounded sums
