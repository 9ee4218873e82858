"""Value domains: what may stand in a tensor, filled from a seed on the CPU.

A domain never touches the global random state, so the same seed gives the same values on every
device, in every worker and beside any model. Besides drawing, a domain knows its simplest member
and how far values may be mixed with it (``unit``): that is what a failing batch is reduced to.
"""

from __future__ import annotations

import abc
import math
from functools import cached_property
from operator import le
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from ..lean import dataclass
from . import noise
from .shapes import SpecError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


def whole(what: str, value: object, *, none: bool = False) -> None:
    """See that a declared number is a whole one.

    Args:
        what: What to call it in an error.
        value: What was declared.
        none: Whether None is allowed too.

    Raises:
        SpecError: It is none.
    """
    if (none and value is None) or (isinstance(value, int) and not isinstance(value, bool)):
        return
    raise SpecError(f"{what} = {value!r}: must be a whole number{' or None' if none else ''}")


Unit = Literal["element", "row", "whole"]
"""What may be replaced by the simplest value on its own: an element, a row of the last axis, or nothing less than the tensor."""


_SMALL = 1 << 15
"""Whole numbers are drawn for the largest shape and cut out, up to so many; beyond that it would cost too much."""


class Context:
    """What a domain may look at besides its own shape.

    Args:
        seed: Where every random number comes from.
        sizes: The sizes of the batch's symbols.
        siblings: The tensors of the batch that are filled already, by their path and by its last part.
        path: Where the tensor stands, such as ``x`` or ``y.mask``.
        grid: The largest shape that the tensor may have. Where it is given, a smaller tensor of the
            same seed is a corner of a larger one, so that what fails may still fail when sizes
            shrink.
    """

    def __init__(
        self,
        seed: int,
        sizes: Mapping[str, int] | None = None,
        siblings: Mapping[str, Any] | None = None,
        path: str = "",
        grid: tuple[int, ...] | None = None,
    ) -> None:
        self.seed = seed
        self.sizes = sizes or {}
        self.siblings = siblings or {}
        self.path = path
        self.grid = grid

    @cached_property
    def stream(self) -> noise.Stream:
        """For a few numbers, and for `noise`."""
        return noise.Stream(self.seed)

    @cached_property
    def generator(self) -> torch.Generator:
        """For whole numbers and orders; on the CPU."""
        return torch.Generator("cpu").manual_seed(self.seed)

    def sibling(self, name: str) -> Any:
        """Another tensor of the same batch.

        Raises:
            SpecError: There is none of that name before this one.
        """
        if name not in self.siblings:
            raise SpecError(
                f"{self.path or 'spec'} refers to {name!r}, which does not come before it in the batch; "
                f"there are: {', '.join(self.siblings) or 'none'}"
            )
        return self.siblings[name]

    def grid_for(self, shape: tuple[int, ...]) -> tuple[int, ...] | None:
        """The grid, where this shape is a corner of it."""
        grid = self.grid
        if grid is None or grid == shape or len(grid) != len(shape):
            return None
        return grid if all(map(le, shape, grid)) else None

    def size(self, what: str | int) -> int:
        """A size that is given as a number or as the name of a symbol.

        Raises:
            SpecError: The symbol has no size.
        """
        if isinstance(what, int):
            return what
        if what not in self.sizes:
            raise SpecError(
                f"{self.path or 'spec'} refers to the size {what!r}; symbols are: {', '.join(self.sizes) or 'none'}"
            )
        return self.sizes[what]


class Domain(abc.ABC):
    """A set of values. A project may bring its own.

    Attributes:
        unit: How far drawn values may be mixed with the simplest ones.
    """

    __slots__ = ()

    @property
    def unit(self) -> Unit:
        """How far drawn values may be mixed with the simplest ones."""
        return "element"

    def allows_cut(self, *, row: bool, changed: Collection[str]) -> bool:
        """Whether a piece of a member is a member.

        Args:
            row: Whether the last axis is cut.
            changed: The symbols whose sizes have changed, in this tensor or elsewhere.
        """
        return self.unit == "element" or (self.unit == "row" and not row)

    @property
    def ends(self) -> tuple[float, float] | None:
        """The smallest and the largest value where every element may have them, else None."""
        return None

    @property
    def indexes(self) -> str | int | None:
        """The symbol of the axis that the values are indices of, else None."""
        return None

    @abc.abstractmethod
    def fill(self, shape: tuple[int, ...], dtype: torch.dtype, context: Context) -> Tensor:
        """Draw a contiguous CPU tensor of this shape and dtype."""

    def simplest(self, shape: tuple[int, ...], dtype: torch.dtype, context: Context) -> Tensor:
        """The member a person would write down; zeros where a domain does not say otherwise."""
        return torch.zeros(shape, dtype=dtype, device="cpu")


def whole_numbers(
    shape: tuple[int, ...], low: int, high: int, context: Context, dtype: torch.dtype = torch.int64
) -> Tensor:
    """Draw whole numbers in ``[low, high)``."""
    if high <= low:
        if math.prod(shape) == 0:
            return torch.empty(shape, dtype=dtype)
        raise SpecError(f"{context.path or 'spec'}: no whole number in [{low}, {high})")
    grid = context.grid_for(shape)
    if grid is None or math.prod(grid) > _SMALL:
        grid = shape
    drawn = torch.empty(grid, dtype=torch.int64, device="cpu")
    drawn.random_(low, high, generator=context.generator)
    if grid != shape:
        drawn = drawn[tuple(slice(size) for size in shape)].contiguous()
    return drawn.to(dtype)


def varied(drawn: Tensor, low: int, high: int) -> Tensor:
    """Give the last of several numbers of ``[low, high)`` another value, in place, where all are the same.

    A loss may depend on nothing while an indicator is 0 for each sample, as if it read no other target.
    """
    flat = drawn.view(-1)
    if high - low > 1 and len(flat) > 1 and bool((flat == flat[0]).all()):
        flat[-1] = low + (int(flat[0]) - low + 1) % (high - low)
    return drawn


def normals(shape: tuple[int, ...], dtype: torch.dtype, context: Context) -> Tensor:
    """Draw normal numbers; complex ones have independent parts."""
    return _noise(noise.normal, shape, dtype, context)


def uniforms(shape: tuple[int, ...], dtype: torch.dtype, context: Context) -> Tensor:
    """Draw uniform numbers in ``[0, 1)``; complex ones have independent parts."""
    return _noise(noise.uniform, shape, dtype, context)


def _noise(draw: Any, shape: tuple[int, ...], dtype: torch.dtype, context: Context) -> Tensor:
    real = torch.float64 if dtype in (torch.float64, torch.complex128) else torch.float32
    grid = context.grid_for(shape)
    if not dtype.is_complex:
        values: Tensor = draw(shape, real, context.stream, grid)
        return values if real == dtype else values.to(dtype)
    pair = None if grid is None else (*grid, 2)
    return torch.view_as_complex(draw((*shape, 2), real, context.stream, pair)).to(dtype)


@dataclass(frozen=True, slots=True)
class Normal(Domain):
    """Normal values; complex ones have independent parts."""

    mean: float = 0.0
    std: float = 1.0

    def fill(self, shape: tuple[int, ...], dtype: torch.dtype, context: Context) -> Tensor:
        """See `Domain`."""
        values = normals(shape, dtype, context)
        if (self.mean, self.std) != (0.0, 1.0):
            values.mul_(self.std).add_(self.mean)
        return values


@dataclass(frozen=True, slots=True)
class Uniform(Domain):
    """Uniform values in ``[low, high]``."""

    low: float
    high: float

    def __post_init__(self) -> None:
        for name, value in (("low", self.low), ("high", self.high)):
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise SpecError(f"{name} = {value!r}: must be a number")
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low <= self.high):
            raise SpecError(
                f"no values from {self.low} to {self.high}; both are finite, low <= high"
            )

    def fill(self, shape: tuple[int, ...], dtype: torch.dtype, context: Context) -> Tensor:
        """See `Domain`."""
        values = uniforms(shape, dtype, context)
        values.mul_(self.high - self.low).add_(self.low)
        if not dtype.is_complex:
            values.clamp_(self.low, self.high)  # rounding must not leave the range
        return values

    @property
    def ends(self) -> tuple[float, float]:
        """See `Domain`."""
        return self.low, self.high

    def simplest(self, shape: tuple[int, ...], dtype: torch.dtype, context: Context) -> Tensor:
        """See `Domain`."""
        return torch.full(shape, min(max(0.0, self.low), self.high), dtype=dtype, device="cpu")


@dataclass(frozen=True, slots=True)
class Rows(Domain):
    """Vectors along the last axis: of unit norm, probabilities, or one-hot.

    Attributes:
        kind: Which of them.
    """

    kind: Literal["unit-norm", "probabilities", "one-hot"]

    @property
    def unit(self) -> Unit:
        """See `Domain`."""
        return "row"

    def fill(self, shape: tuple[int, ...], dtype: torch.dtype, context: Context) -> Tensor:
        """See `Domain`."""
        if not shape:
            raise SpecError(
                f"{context.path or 'spec'}: {self.kind} values lie along an axis; a scalar has none"
            )
        if self.kind == "one-hot":
            hot = whole_numbers((*shape[:-1], 1), 0, max(1, shape[-1]), context)
            return self._hot(shape, dtype, hot)
        if self.kind == "probabilities":
            real = torch.float64 if dtype == torch.float64 else torch.float32
            # exponential numbers over their sum are uniform on the simplex
            parts = uniforms(shape, real, context).neg_().log1p_().neg_().clamp_(min=1e-6)
            return (parts / parts.sum(-1, keepdim=True)).to(dtype)
        values = normals(shape, dtype, context)
        norms: Tensor = torch.linalg.vector_norm(values, dim=-1, keepdim=True)
        return values / norms

    def simplest(self, shape: tuple[int, ...], dtype: torch.dtype, context: Context) -> Tensor:
        """See `Domain`."""
        if self.kind == "probabilities":
            return torch.full(shape, 1.0 / max(1, shape[-1]), dtype=dtype, device="cpu")
        return self._hot(shape, dtype, torch.zeros((*shape[:-1], 1), dtype=torch.int64))

    @staticmethod
    def _hot(shape: tuple[int, ...], dtype: torch.dtype, index: Tensor) -> Tensor:
        made = torch.zeros(shape, dtype=dtype, device="cpu")
        return made.scatter_(-1, index, 1) if made.numel() else made


@dataclass(frozen=True, slots=True)
class Integers(Domain):
    """Whole numbers in ``[low, high)``."""

    low: int
    high: int

    def __post_init__(self) -> None:
        whole("low", self.low)
        whole("high", self.high)
        if self.high <= self.low:
            raise SpecError(f"no whole number in [{self.low}, {self.high}); high is exclusive")

    def fill(self, shape: tuple[int, ...], dtype: torch.dtype, context: Context) -> Tensor:
        """See `Domain`."""
        drawn = whole_numbers(shape, self.low, self.high, context, dtype)
        return varied(drawn, self.low, self.high)

    @property
    def ends(self) -> tuple[float, float]:
        """See `Domain`."""
        return self.low, self.high - 1

    def simplest(self, shape: tuple[int, ...], dtype: torch.dtype, context: Context) -> Tensor:
        """See `Domain`."""
        return torch.full(shape, min(max(0, self.low), self.high - 1), dtype=dtype, device="cpu")


@dataclass(frozen=True, slots=True)
class Bools(Domain):
    """True and False.

    Attributes:
        chance: Of True.
    """

    chance: float = 0.5

    def fill(self, shape: tuple[int, ...], dtype: torch.dtype, context: Context) -> Tensor:
        """See `Domain`."""
        drawn = uniforms(shape, torch.float32, context) < self.chance
        return varied(drawn, 0, 2 if 0 < self.chance < 1 else 1).to(dtype)


@dataclass(frozen=True, slots=True)
class EdgeIndex(Domain):
    """Edges of a graph: ``(2, edges)`` or ``(edges, 2)`` whole numbers below the number of nodes.

    Attributes:
        nodes: The symbol (or number) of nodes.
        self_loops: Whether an edge may lead from a node to itself.
    """

    nodes: str | int
    self_loops: bool = True

    @property
    def unit(self) -> Unit:
        """See `Domain`."""
        return "element" if self.self_loops else "whole"

    @property
    def indexes(self) -> str | int:
        """See `Domain`."""
        return self.nodes

    def allows_cut(self, *, row: bool, changed: Collection[str]) -> bool:
        """See `Domain`."""
        return self.nodes not in changed  # fewer nodes allow fewer values

    def fill(self, shape: tuple[int, ...], dtype: torch.dtype, context: Context) -> Tensor:
        """See `Domain`."""
        nodes = context.size(self.nodes)
        drawn = whole_numbers(shape, 0, nodes, context, dtype)
        if not self.self_loops and drawn.numel():
            if nodes < 2:
                raise SpecError(
                    f"{context.path}: a graph of {nodes} node has no edge without self-loops"
                )
            pair = drawn if shape[0] == 2 else drawn.movedim(-1, 0)
            step = whole_numbers(tuple(pair.shape[1:]), 1, nodes, context, dtype)
            pair[1] = (pair[0] + step) % nodes
        return drawn


def default_domain(dtype: torch.dtype) -> Domain:
    """The values of a tensor for which none were declared: normal, small whole numbers, or booleans."""
    if dtype == torch.bool:
        return Bools()
    if dtype.is_floating_point or dtype.is_complex:
        return Normal()
    return Integers(0, 16)
