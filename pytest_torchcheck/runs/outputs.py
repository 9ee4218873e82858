"""The outputs of a model in evaluation mode, the dimension that their batch is, and how far two sets lie apart."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..lean import dataclass
from ..objects import trees
from ..state import seed_everything
from ..subject.errors import SubjectError
from ..subject.remembered import remembered
from .facts import forward_facts, outputs

if TYPE_CHECKING:
    from ..batches import Batch
    from ..subject import Subject

ROUNDING, ROUNDING_ELSEWHERE = 1e-5, 1e-3
"""Largest difference, in parts of the largest output, that other memory explains, on the CPU and on other devices."""


Outputs = dict[str, torch.Tensor]


def outputs_of(subject: Subject, model: nn.Module, batch: Batch | None = None) -> Outputs:
    """Return the outputs of a batch (the base one) in eval mode, detached, by path.

    Raises:
        SubjectError: The model raised.
    """
    batch = (subject.batch() if batch is None else batch).clone()
    model.eval()
    seed_everything(subject.seed)
    with torch.no_grad():
        found = trees.tensors(subject.call(model, batch))
    return {path: trees.dense(tensor).clone() for path, tensor in found.items()}


@remembered("eval-outputs")
def reference(subject: Subject) -> Outputs:
    """Return the outputs of the pristine model; cached.

    Raises:
        SubjectError: The model raised.
    """
    return {path: trees.dense(t) for path, t in forward_facts(subject).outputs.items()}


@dataclass(frozen=True, slots=True)
class Expected:
    """What the pristine model gives.

    Attributes:
        batch: The first two samples; the base batch where it cannot be cut, or two are refused.
        some: The outputs of ``batch``.
        whole: The outputs of the base batch.
    """

    batch: Batch
    some: Outputs
    whole: Outputs


def expectations(subject: Subject) -> Expected:
    """Return what the pristine model gives for two samples and for all; cached. Ask before changing the model.

    What two samples do not show is hardly ever shown by more of them, and they cost less.

    Raises:
        SubjectError: The model raised for the whole batch.
    """
    if "expected" not in subject.cache:
        whole, batch = reference(subject), subject.batch()
        found = Expected(batch, whole, whole)
        with contextlib.suppress(SubjectError):
            if (few := subject.few(batch)) is not None:
                some = {path: trees.dense(t) for path, t in outputs(subject, few).items()}
                found = Expected(few, some, whole)
        subject.cache["expected"] = found
    known: Expected = subject.cache["expected"]
    return known


@remembered("undetermined")
def undetermined(subject: Subject) -> bool:
    """Say whether two evaluations of the base batch differ that begin from one state and one seed; cached.

    Then something decides the output that is neither: the time, the operating system, state outside of the model.
    Cost: one forward; ask only where two evaluations that should agree do not.
    """
    again = outputs(subject, subject.batch().clone())
    return gap({path: trees.dense(t) for path, t in again.items()}, reference(subject)) is not None


def unlike(subject: Subject, model: nn.Module, expected: Expected) -> tuple[str, float] | None:
    """Return where a model's outputs lie apart from the expected ones: of two samples, then of all.

    Raises:
        SubjectError: The model raised.
    """
    found = gap(outputs_of(subject, model, expected.batch), expected.some)
    if found is None or expected.some is expected.whole:
        return found
    with contextlib.suppress(SubjectError):  # two samples may have left a state for two
        return gap(outputs_of(subject, model), expected.whole) or found
    return found


def gap(a: Outputs, b: Outputs) -> tuple[str, float] | None:
    """Return the output that differs most and ``max|a - b|``, or None where all are equal up to alignment."""
    if a.keys() != b.keys():
        return next(iter(set(a) ^ set(b))), float("inf")
    found: tuple[str, float] | None = None
    for path, tensor in a.items():
        if trees.same(tensor, b[path]):
            continue
        distance = trees.worst(tensor, b[path])
        rounding = ROUNDING if tensor.device.type == "cpu" else ROUNDING_ELSEWHERE
        if distance > rounding * trees.scale(b[path]) and (found is None or distance > found[1]):
            found = path, distance
    return found


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
            few = subject.few(batch, count)
            less = outputs(subject, few)
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


def gaps_between(
    first: dict[str, torch.Tensor],
    second: dict[str, torch.Tensor],
    rows: Rows,
    of_a: torch.Tensor,
    of_b: torch.Tensor,
) -> dict[str, float]:
    """Return how far samples of two runs lie apart, by output, in parts of the largest value.

    Args:
        first: The outputs of one run.
        second: Those of the other.
        rows: Where the samples stand in each.
        of_a: int64 ``[n]``, samples of the first run.
        of_b: int64 ``[n]``, those of the second that they are compared with.
    """
    gaps = {}
    for path, dim in rows.dims.items():
        if path not in second:
            gaps[path] = float("inf")
            continue
        x = trees.dense(first[path]).index_select(dim, of_a.to(first[path].device))
        y = trees.dense(second[path]).index_select(dim, of_b.to(second[path].device))
        gap = trees.worst(x, y)
        # one of the two may be all zeros
        gaps[path] = gap / max(trees.scale(x), trees.scale(y), 1e-30) if gap else 0.0
    return gaps


_CLOSE = 1e-4


def other_batch_dim(subject: Subject) -> int | None:
    """Return the dimension along which samples seem to lie in place of dimension 0; None where none does.

    That is so where every output keeps its entries when those of the inputs are exchanged along it, and
    entry 0 stays when all others are replaced. It is dimension 1 of a real batch, and where specs name
    ``B`` in another dimension alone, that one. It is not asked where a tensor of one dimension, such as labels, has the size of dimension 0 alone.
    """
    source = subject.source
    if subject.contract.batch_dim != 0:
        return None
    batch = subject.batch()
    axes = source.axes("B") if source.batch_symbol != "B" else {}
    named = {axes[path] for path, _ in batch.input_leaves() if path in axes}
    if len(named) > 1 or not (named or source.has_real):
        return None
    dim = named.pop() if named else 1
    leaves = [t for _, t in batch.leaves() if isinstance(t, torch.Tensor) and t.dim()]
    wide = [t for _, t in batch.input_leaves() if isinstance(t, torch.Tensor) and t.dim() > dim]
    if not wide or len({t.shape[dim] for t in wide}) > 1:
        return None
    first, size = wide[0].shape[0], wide[0].shape[dim]
    flat = [t for t in leaves if t.dim() == 1]
    if size < 2 or any(t.shape[0] == first != size for t in flat):
        return None
    try:
        return dim if _behaves(subject, batch, size, dim) else None
    except SubjectError:
        return None


def _behaves(subject: Subject, batch: Batch, size: int, dim: int) -> bool:
    order = torch.arange(size).roll(1)
    plain = outputs(subject)
    turned = outputs(subject, _taken(batch, order, dim))
    kept = outputs(subject, _taken(batch, torch.zeros(size, dtype=torch.int64), dim))
    axes = {path: _axis(t, turned.get(path), order) for path, t in plain.items()}
    if not axes or any(axis is None for axis in axes.values()):
        return False
    return all(
        _close(plain[path].select(axis, 0), kept[path].select(axis, 0))
        for path, axis in axes.items()
        if axis is not None
    )


def _taken(batch: Batch, index: torch.Tensor, dim: int) -> Batch:
    """Take entries along a dimension, and along the last one of what has no such."""

    def take(_path: str, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or not leaf.dim():
            return leaf
        along = min(dim, leaf.dim() - 1)
        return (
            leaf.detach().index_select(along, index.to(leaf.device))
            if leaf.shape[along] == len(index)
            else leaf
        )

    return batch.map(take, targets=False)


def _axis(before: torch.Tensor, after: torch.Tensor | None, order: torch.Tensor) -> int | None:
    """Return the axis along which an output was exchanged as its inputs were."""
    if after is None or after.shape != before.shape or trees.same(before, after):
        return None
    return next(
        (
            axis
            for axis in range(before.dim())
            if before.shape[axis] == len(order)
            and _close(before.index_select(axis, order.to(before.device)), after)
        ),
        None,
    )


def _close(a: torch.Tensor, b: torch.Tensor) -> bool:
    return trees.apart(b, a) <= _CLOSE
