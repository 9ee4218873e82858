"""Further specs of plain tensors: images, vectors of a kind, positions, lengths, edges."""

from __future__ import annotations

import torch

from .domains import EdgeIndex, Integers, Rows, Uniform
from .sequences import Lengths as LengthsDomain
from .sequences import Monotone
from .shapes import SpecError
from .tensors import TensorSpec, parse_dtype


class Images(TensorSpec):
    """Images: 0..255 as uint8, or 0..1 as a floating dtype. The shape says where the channels stand.

    Args:
        shape: Such as ``"B 3 H W"`` or ``"B H W 3"``.
        dtype: ``uint8`` or a floating dtype; float32 by default.
    """

    __slots__ = ()

    def __init__(self, shape: str | None = None, *, dtype: str | torch.dtype | None = None) -> None:
        dtypes = parse_dtype(dtype, "Images: dtype")
        if not (dtypes == (torch.uint8,) or all(member.is_floating_point for member in dtypes)):
            raise SpecError(f"Images: dtype = {dtype!r}: images are uint8 or floating")
        values = Integers(0, 256) if dtypes == (torch.uint8,) else Uniform(0.0, 1.0)
        super().__init__(shape, dtype=dtype or torch.float32, values=values)


class UnitVectors(TensorSpec):
    """Vectors of length 1 along the last axis; arguments as in `TensorSpec`."""

    __slots__ = ()

    def __init__(self, shape: str | None = None, *, dtype: str | torch.dtype | None = None) -> None:
        super().__init__(shape, dtype=dtype, values=Rows("unit-norm"))


class Probabilities(TensorSpec):
    """Positive numbers whose sum along the last axis is 1; arguments as in `TensorSpec`."""

    __slots__ = ()

    def __init__(self, shape: str | None = None, *, dtype: str | torch.dtype | None = None) -> None:
        super().__init__(shape, dtype=dtype, values=Rows("probabilities"))


class OneHot(TensorSpec):
    """One 1 along the last axis, otherwise 0; arguments as in `TensorSpec`."""

    __slots__ = ()

    def __init__(self, shape: str | None = None, *, dtype: str | torch.dtype | None = None) -> None:
        super().__init__(shape, dtype=dtype, values=Rows("one-hot"))


class Positions(TensorSpec):
    """Numbers that grow along the last axis, from 0.

    Args:
        shape: As in `TensorSpec`.
        strict: Whether they always grow, or may stay.
        dtype: int64 by default.
    """

    __slots__ = ()

    def __init__(
        self,
        shape: str | None = None,
        *,
        strict: bool = True,
        dtype: str | torch.dtype | None = None,
    ) -> None:
        super().__init__(shape, dtype=dtype or torch.int64, values=Monotone(strict))


class Lengths(TensorSpec):
    """Lengths of ragged rows, in ``shortest..longest``; at least one row is the longest.

    Args:
        shape: As in `TensorSpec`, such as ``"B"``.
        longest: The symbol of the padded axis, such as ``"T"``, or a number.
        shortest: The smallest length.
        dtype: int64 by default.
    """

    __slots__ = ()

    def __init__(
        self,
        shape: str | None = None,
        *,
        longest: str | int,
        shortest: int = 1,
        dtype: str | torch.dtype | None = None,
    ) -> None:
        super().__init__(shape, dtype=dtype or torch.int64, values=LengthsDomain(longest, shortest))


class Edges(TensorSpec):
    """The edge index of a graph, tied to its number of nodes.

    Args:
        shape: ``"2 E"`` or ``"E 2"``.
        nodes: The symbol of nodes, such as ``"N"``, or a number.
        self_loops: Whether an edge may lead from a node to itself.
        dtype: int64 by default.
    """

    __slots__ = ()

    def __init__(
        self,
        shape: str | None = "2 E",
        *,
        nodes: str | int,
        self_loops: bool = True,
        dtype: str | torch.dtype | None = None,
    ) -> None:
        super().__init__(shape, dtype=dtype or torch.int64, values=EdgeIndex(nodes, self_loops))
        if self.shape is not None:
            sizes = [axis.size.value if axis.kind == "plain" else None for axis in self.shape.axes]
            if len(sizes) != 2 or 2 not in sizes:
                raise SpecError(
                    f"Edges: shape = {self.shape.text!r}: an edge index is '2 E' or 'E 2', with the 2 as a number"
                )
