"""Other sizes of a whole batch: which tensors are cut or wrapped around, and which are drawn anew."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from .read import is_dense
from .resample import Dims, resample, row_index

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from ..specs.domains import Context
    from ..specs.tensors import TensorSpec

IGNORED = -100
"""The label that torch's losses leave out by default."""
Rows = Literal["seeded", "first", "last"]
"""Which rows are kept: those from the seed on, with declared values drawn anew; or a piece of the batch as it is."""


@dataclass(frozen=True, kw_only=True)
class Resizing:
    """One change of sizes.

    Attributes:
        old: Sizes before.
        new: Sizes after.
        rows: Which rows are kept.
        index: Per symbol, which old rows become the new ones.
        dims: The axes of the tensor at a path, at given sizes; None if nothing is known of it.
        context: Where new values of the tensor at a path come from.
    """

    old: Mapping[str, int]
    new: Mapping[str, int]
    rows: Rows
    index: Mapping[str, Tensor]
    dims: Callable[[str, Mapping[str, int]], Dims | None]
    context: Callable[[str], Context]

    @property
    def changed(self) -> set[str]:
        """The symbols whose sizes change."""
        return {name for name, size in self.new.items() if self.old.get(name) != size}

    def of(self, path: str, leaf: Any, spec: TensorSpec | None) -> Any:
        """The leaf at a path at the new sizes."""
        before, after = self.dims(path, self.old), self.dims(path, self.new)
        if before is None or after is None:
            return leaf
        if spec is not None and self._is_redrawn(leaf, spec, before, after):
            made = spec.fill(
                self._shape(leaf, after), self.context(path), getattr(leaf, "dtype", None)
            )
            return (
                made.requires_grad_(leaf.requires_grad)
                if is_dense(made) and is_dense(leaf)
                else made
            )
        if not is_dense(leaf):
            return leaf
        return resample(leaf.detach(), before, self.old, self.new, self.index).requires_grad_(
            leaf.requires_grad
        )

    def _is_redrawn(self, leaf: Any, spec: TensorSpec, before: Dims, after: Dims) -> bool:
        if before != after:  # another number of axes: nothing of the old values has a place
            return True
        if not spec.own_values:
            return False
        if not is_dense(leaf) or spec.unit == "whole":
            return bool(self.changed)
        shape = self._shape(leaf, after)
        if self.rows == "seeded" and shape != tuple(leaf.shape):
            return True
        row = bool(shape) and shape[-1] != leaf.shape[-1]
        return not spec.allows_cut(row=row, changed=self.changed)

    def _shape(self, leaf: Any, dims: Dims) -> tuple[int, ...]:
        real = leaf.shape if is_dense(leaf) and len(leaf.shape) == len(dims) else (0,) * len(dims)
        return tuple(
            size if dim is None else dim.value_at(self.new)
            for dim, size in zip(dims, real, strict=True)
        )


def row_indices(
    old: Mapping[str, int], new: Mapping[str, int], rows: Rows, batch: str | None, seed: int
) -> dict[str, Tensor]:
    """Per symbol, which old rows become the new ones; ``seed`` moves the batch's where rows are seeded."""

    def shift(name: str) -> int:
        if rows == "last":
            return max(0, old[name] - new[name])
        return seed if rows == "seeded" and name == batch else 0

    return {name: row_index(old[name], new[name], shift(name)) for name in new if name in old}


def counted(
    target: Tensor,
    dims: Dims,
    old: Mapping[str, int],
    new: Mapping[str, int],
    index: Mapping[str, Tensor],
    ignored: int,
) -> dict[str, Tensor]:
    """Return other rows where those chosen would leave no label that the loss counts, such as the masked prompt of a text.

    Args:
        target: Labels, before they are cut.
        dims: The axes of the target.
        old: Sizes before.
        new: Sizes after.
        index: Per symbol, which old rows become the new ones.
        ignored: The label that the loss leaves out.

    Returns:
        Per symbol of the target whose size changes, rows from the first counted label on; nothing
        where the labels are fine.
    """
    if target.is_floating_point() or target.is_complex() or len(dims) != target.dim():
        return {}
    left_out = target == ignored
    if not left_out.any() or left_out.all():
        return {}
    if not resample(left_out, dims, old, new, index).all():
        return {}
    first = left_out.logical_not().nonzero()[0].tolist()
    return {
        dim.name: row_index(old[dim.name], new[dim.name], place)
        for dim, place in zip(dims, first, strict=True)
        if dim is not None
        and dim.op == "symbol"
        and dim.name in index
        and old[dim.name] != new[dim.name]
    }
