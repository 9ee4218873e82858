"""Other sizes of a batch: tensors are cropped or wrapped around along the axes of a symbol, or drawn anew.

The values of a real batch keep their domain when they are indexed: ids stay ids, masks stay masks,
    labels stay labels.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from ..lean import dataclass
from ..specs.domains import Integers
from ..specs.shapes import Expr
from .read import is_dense

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ..specs.domains import Context
    from ..specs.tensors import TensorSpec

Dims = tuple[Expr | None, ...]
"""The size of every axis of a tensor as an expression; None where it is not known."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How one tensor of the real batch follows the sizes.

    Attributes:
        dims: The size of every axis; None where it is not known.
        sure: Whether the shape is known at every size.
        follows_batch: Where it is not, whether it is known at other batch sizes.
    """

    dims: Dims
    sure: bool
    follows_batch: bool = True

    def known(self, changed: set[str], batch: str | None) -> bool:
        """Whether the shape can be told when these symbols change."""
        return self.sure or not changed or (self.follows_batch and changed <= {batch})

    def shape(self, real: Sequence[int], sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The shape at these sizes."""
        return tuple(
            size if dim is None else dim.value_at(sizes)
            for dim, size in zip(self.dims, real, strict=True)
        )


def row_index(old: int, new: int, shift: int = 0) -> Tensor:
    """Which old rows make ``new`` rows: in order, wrapping around, from ``shift`` on."""
    if not old:
        return torch.zeros(0, dtype=torch.int64)
    return (torch.arange(new) + shift) % old


def resample(
    tensor: Tensor,
    dims: Dims,
    old: Mapping[str, int],
    new: Mapping[str, int],
    index: Mapping[str, Tensor],
) -> Tensor:
    """Take other sizes out of a real tensor.

    Args:
        tensor: The real one.
        dims: The expressions of its axes.
        old: Sizes before.
        new: Sizes after.
        index: Per symbol, which old rows become the new ones.

    Returns:
        A tensor of the new shape, made of the real one's elements.
    """
    for axis, dim in enumerate(dims):
        if dim is None or dim.op == "number":
            continue
        rows = _axis_index(dim, old, new, index)
        if len(rows) != tensor.shape[axis] or not torch.equal(rows, torch.arange(len(rows))):
            tensor = tensor.index_select(axis, rows.to(tensor.device))
    return tensor


def _axis_index(
    dim: Expr, old: Mapping[str, int], new: Mapping[str, int], index: Mapping[str, Tensor]
) -> Tensor:
    if dim.op == "symbol" and dim.name in index:
        return index[dim.name]
    if dim.op == "*" and all(arg.op in ("symbol", "number", "*") for arg in dim.args):
        left, right = (_axis_index(arg, old, new, index) for arg in dim.args)
        return (left.unsqueeze(1) * dim.args[1].value_at(old) + right).reshape(-1)
    return row_index(dim.value_at(old), dim.value_at(new))


def infer_dims(
    shape: Sequence[int],
    patterns: Sequence[tuple[Sequence[int], Dims]],
    batch: tuple[Expr, int] | None,
) -> Plan:
    """Guess the axes of a tensor without a spec from the tensors that have one.

    Every axis must be found, in the same order, among the axes of a declared tensor, in exactly one
    way; where that fails, only the first axis is followed, and only if it has the batch's size.

    Args:
        shape: The tensor's shape.
        patterns: Shapes and axes of declared tensors, the most telling first.
        batch: The batch's symbol and the axis on which it stands, or None if there is no batch axis.
    """
    if not shape:
        return Plan((), sure=True)
    fallback: list[Expr | None] = [None] * len(shape)
    if batch is not None and batch[1] < len(shape):
        fallback[batch[1]] = batch[0]
    if len(shape) == 1 and fallback[0] is not None:
        return Plan(tuple(fallback), sure=True)
    readings: set[Dims] = set()
    for sizes, dims in patterns:
        found = _embeddings(tuple(shape), tuple(sizes), dims, batch)
        if len(found) == 1:
            readings |= found
        elif found:
            break
    if len(readings) == 1:
        return Plan(readings.pop(), sure=True)
    return Plan(tuple(fallback), sure=False, follows_batch=any(dim is not None for dim in fallback))


def _embeddings(
    shape: tuple[int, ...], sizes: tuple[int, ...], dims: Dims, batch: tuple[Expr, int] | None
) -> set[Dims]:
    """The ways in which ``shape`` is a subsequence of ``sizes``, as axes."""
    found: set[Dims] = set()
    for chosen in combinations(range(len(sizes)), len(shape)):
        if any(sizes[i] != size for i, size in zip(chosen, shape, strict=True)):
            continue
        picked = tuple(dims[i] for i in chosen)
        if batch is not None and batch[1] < len(picked) and picked[batch[1]] != batch[0]:
            continue
        found.add(picked)
    return found


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
        if not is_dense(leaf) or spec.unit == "whole" or _outside(leaf, spec):
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


def _outside(leaf: Tensor, spec: TensorSpec) -> bool:
    """Say whether whole numbers lie outside of their declared range, such as indices of rows that a cut takes away."""
    domain = spec.domain
    if not isinstance(domain, Integers) or leaf.is_floating_point() or not leaf.numel():
        return False
    least, most = leaf.aminmax()
    return bool(least < domain.low or most >= domain.high)


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
