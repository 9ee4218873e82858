"""Specs of what is no plain tensor: packed sequences, nested tensors, sparse tensors."""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from .sequences import Lengths
from .shapes import SpecError
from .tensors import TensorSpec

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from .domains import Context, Domain, Unit

SparseLayout = Literal["coo", "csr"]


@contextmanager
def _no_beta_warnings() -> Iterator[None]:
    """Who declares a structure knows that torch calls it beta, and may have made warnings errors."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*(beta|prototype).*", UserWarning)
        yield


class StructureSpec(TensorSpec):
    """Base of specs whose value is not a plain tensor: its elements are not mixed with simpler ones one by one."""

    __slots__ = ()

    @property
    def unit(self) -> Unit:
        """See `Domain`."""
        return "whole"

    def allows_cut(self, *, row: bool, changed: Collection[str]) -> bool:
        """Another size of a structure is always drawn."""
        return False

    @property
    def own_values(self) -> bool:
        """Another size of a structure is always drawn."""
        return True

    def simplest(
        self, shape: tuple[int, ...], context: Context, dtype: torch.dtype | None = None
    ) -> Any:
        """The structure as it is drawn: there is no simpler one that is worth a second fill."""
        return self.fill(shape, context, dtype)

    def _plain(self, shape: tuple[int, ...], context: Context, dtype: torch.dtype | None) -> Tensor:
        return self.domain.fill(shape, dtype or self.dtype, context)


class Packed(StructureSpec):
    """A `PackedSequence` of rows of different lengths.

    Args:
        shape: Of the padded tensor, such as ``"B T D"``: the batch, the longest row, and the features.
        lengths: The input that holds the rows' lengths; they are drawn where there is none.
        dtype, values: As in `TensorSpec`.
    """

    __slots__ = ("lengths",)

    lengths: str | None

    def __init__(
        self,
        shape: str | None = None,
        *,
        lengths: str | None = None,
        dtype: str | torch.dtype | None = None,
        values: Domain | None = None,
    ) -> None:
        super().__init__(shape, dtype=dtype, values=values)
        self._set(lengths=lengths)

    def fill(
        self, shape: tuple[int, ...], context: Context, dtype: torch.dtype | None = None
    ) -> PackedSequence:
        """Draw a packed sequence."""
        if len(shape) < 2 or not shape[0] or not shape[1]:
            raise SpecError(
                f"{context.path or 'Packed'}: a packed sequence has rows and steps, not {list(shape)}"
            )
        lengths = (
            context.sibling(self.lengths)
            if self.lengths is not None
            else Lengths(shape[1]).fill(shape[:1], torch.int64, context)
        )
        return pack_padded_sequence(
            self._plain(shape, context, dtype),
            lengths.cpu(),
            batch_first=True,
            enforce_sorted=False,
        )


class Nested(StructureSpec):
    """A nested tensor: rows of different lengths without padding.

    Args:
        shape: Of the padded tensor, such as ``"B T D"``: the second axis is ragged.
        layout: ``jagged`` or ``strided``.
        dtype, values: As in `TensorSpec`.
    """

    __slots__ = ("layout",)

    layout: str

    def __init__(
        self,
        shape: str | None = None,
        *,
        layout: Literal["jagged", "strided"] = "jagged",
        dtype: str | torch.dtype | None = None,
        values: Domain | None = None,
    ) -> None:
        if layout not in ("jagged", "strided"):
            raise SpecError(
                f"Nested: layout = {layout!r}: a nested tensor is 'jagged' or 'strided'"
            )
        super().__init__(shape, dtype=dtype, values=values)
        self._set(layout=layout)

    def fill(
        self, shape: tuple[int, ...], context: Context, dtype: torch.dtype | None = None
    ) -> Tensor:
        """Draw a nested tensor."""
        if len(shape) < 2 or not shape[0]:
            raise SpecError(
                f"{context.path or 'Nested'}: a nested tensor has rows of a length, not {list(shape)}"
            )
        padded = self._plain(shape, context, dtype)
        lengths = Lengths(shape[1]).fill(shape[:1], torch.int64, context)
        rows = [row[:length] for row, length in zip(padded, lengths.tolist(), strict=True)]
        layout = torch.jagged if self.layout == "jagged" else torch.strided
        with _no_beta_warnings():
            return torch.nested.nested_tensor(rows, layout=layout)


class Sparse(StructureSpec):
    """A sparse tensor.

    Args:
        shape: Of the dense tensor.
        layout: ``coo`` or ``csr``; the latter has two axes.
        density: The share of elements that are stored; at least one is, where there are any.
        dtype, values: As in `TensorSpec`.
    """

    __slots__ = ("density", "layout")

    layout: str
    density: float

    def __init__(
        self,
        shape: str | None = None,
        *,
        layout: SparseLayout = "coo",
        density: float = 0.1,
        dtype: str | torch.dtype | None = None,
        values: Domain | None = None,
    ) -> None:
        if layout not in ("coo", "csr"):
            raise SpecError(f"Sparse: layout = {layout!r}: allowed are 'coo' and 'csr'")
        if not 0.0 <= density <= 1.0:
            raise SpecError(f"Sparse: density = {density!r}: a share from 0 to 1")
        super().__init__(shape, dtype=dtype, values=values)
        self._set(layout=layout, density=density)

    def fill(
        self, shape: tuple[int, ...], context: Context, dtype: torch.dtype | None = None
    ) -> Tensor:
        """Draw a sparse tensor."""
        if self.layout == "csr" and len(shape) != 2:
            raise SpecError(
                f"{context.path or 'Sparse'}: a csr tensor has two axes, not {list(shape)}"
            )
        dense = self._plain(shape, context, dtype)
        count = min(dense.numel(), max(1, round(self.density * dense.numel())))
        stored = torch.zeros(dense.numel(), dtype=torch.bool)
        stored[torch.randperm(dense.numel(), generator=context.generator)[:count]] = True
        kept = dense.masked_fill(~stored.view(shape), 0)
        with _no_beta_warnings():
            return kept.to_sparse() if self.layout == "coo" else kept.to_sparse_csr()
