"""Which dimension of each output is the batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ..subject.errors import SubjectError
from ..subject.remembered import remembered
from .facts import outputs

if TYPE_CHECKING:
    from ..batches import Batch
    from ..subject import Subject


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Which dimension of each output is the batch.

    Attributes:
        dims: By path of the output; outputs without a batch dimension are left out.
        others: Outputs whose shape does not follow the batch.
    """

    dims: dict[str, int]
    others: tuple[str, ...]


@remembered("rows")
def output_rows(subject: Subject) -> Rows | None:
    """Find the batch dimension of every output by looking at two batch sizes; cached.

    Returns:
        None where there is no batch axis, or where fewer samples cannot be taken.
    """
    symbol = subject.source.batch_symbol
    batch = subject.batch()
    if symbol is None or batch.sizes.get(symbol, 0) < 2:
        return None
    size = batch.sizes[symbol]
    full = outputs(subject)
    less, count = None, 0
    for count in sorted({min(2, size - 1), size - 1}):  # few are cheap; some models refuse them
        try:
            less = outputs(subject, subject.source.rows(batch, torch.arange(count)))
            break
        except SubjectError:
            continue  # other sizes are another check's business
    if less is None:
        return None
    dims: dict[str, int] = {}
    others: list[str] = []
    for path, tensor in full.items():
        other = less.get(path)
        # the elements of a set stand in the order of their values, which other samples may change
        if other is None or "{" in path or tensor.is_nested or other.dim() != tensor.dim():
            others.append(path)
            continue
        moved = [
            dim
            for dim in range(tensor.dim())
            if tensor.shape[dim] == size and other.shape[dim] == count
        ]
        if len(moved) == 1 and all(
            a == b
            for d, (a, b) in enumerate(zip(tensor.shape, other.shape, strict=True))
            if d != moved[0]
        ):
            dims[path] = moved[0]
        else:
            others.append(path)
    return Rows(dims=dims, others=tuple(others))


def floating_from(batch: Batch, other: Batch) -> Batch:
    """Return ``other`` with the integer and boolean tensors of ``batch``: lengths keep their order."""
    own = batch.tensors()

    def change(path: str, leaf: object) -> object:
        whole = isinstance(leaf, torch.Tensor) and not (
            leaf.is_floating_point() or leaf.is_complex()
        )
        return own[path].detach().clone() if whole and path in own else leaf

    return other.map(change)
