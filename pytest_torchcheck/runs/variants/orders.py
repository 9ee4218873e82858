"""Inputs with the entries of a set, or the edges of a graph, in another order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ...objects import trees
from ...objects.kinds import kind_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch import Tensor

    from ...batches import Batch
    from ...subject import Subject

_TIMES = {
    "t",
    "ts",
    "dt",
    "time",
    "times",
    "timestamp",
    "timestamps",
    "date",
    "order",
    "event",
    "step",
}
"""Words in the name of an input that says when an edge came, so that their order counts."""
_REFERS = ("idx", "index", "ptr", "rev", "num")
"""Parts of the name of an integer input that may hold numbers of edges."""
_PASSES = 6
_LOUD = 3.0


def with_inputs(batch: Batch, changed: Mapping[str, Tensor]) -> Batch:
    """Return the batch with some inputs, by path, replaced."""
    return batch.map(lambda path, leaf: changed.get(path, leaf), targets=False)


def louder(batch: Batch) -> Batch:
    """Return a batch with its numbers multiplied by three; whole numbers, which may be ids or counts, stay."""

    def change(_path: str, leaf: object) -> object:
        if not isinstance(leaf, torch.Tensor) or not leaf.is_floating_point() or kind_of(leaf):
            return leaf
        return leaf if bool((leaf == leaf.round()).all()) else leaf * _LOUD

    return batch.map(change, targets=False)


def another_first(subject: Subject, batch: Batch, size: int) -> Tensor:
    """Return an order of the samples, int64 [size], whose first one differs from that of the batch in most inputs.

    The last two change places besides: a rotation alone commutes with what counts through the samples in steps.
    """
    axes = subject.source.axes(subject.source.batch_symbol or "")
    given = [
        (t, axes[path])
        for path, t in batch.tensors().items()
        if path in axes and t.layout == torch.strided and not t.is_nested
    ]

    def changed(order: Tensor) -> int:
        first = int(order[0])
        return sum(not trees.same(t.select(dim, 0), t.select(dim, first)) for t, dim in given)

    order = max((torch.arange(size).roll(n) for n in range(1, size)), key=changed)
    return order if size < 3 else torch.cat([order[:-2], order[-2:].flip(0)])


def turned(subject: Subject, batch: Batch, axes: Mapping[str, int], order: Tensor) -> Batch:
    """Return the batch with inputs in another order along their axes, and with the indices that go with them."""
    given = batch.tensors()
    moved = {p: given[p].index_select(dim, order.to(given[p].device)) for p, dim in axes.items()}
    indices = _indices_along(subject, batch, axes)
    renamed = {path: order.argsort().to(t)[t.long()] for path, t in indices.items()}
    return with_inputs(batch, moved | renamed)


def _indices_along(subject: Subject, batch: Batch, dims: Mapping[str, int]) -> dict[str, Tensor]:
    """Return the inputs whose values are declared as indices into the dimensions that are permuted."""
    axes = {symbol: subject.source.axes(symbol).items() for symbol in subject.source.symbols}
    permuted = {symbol for symbol, found in axes.items() if found & dims.items()}
    paths = {
        path
        for path, spec in subject.source.specs.items()
        if spec.values is not None and spec.values.indexes in permuted
    }
    return {path: t for path, t in batch.tensors().items() if path in paths - dims.keys()}


def edge_axes(subject: Subject) -> dict[str, int]:
    """Return the dimension of the edges in each input that has one, by path; none where their order may count.

    It may where an input says when edges came, how many of them belong together, or which of them it
    means by their numbers.
    """
    path, symbol = subject.source.edges or ("", "")
    leaves = dict(subject.batch().input_leaves())
    inputs = {p: leaf for p, leaf in leaves.items() if isinstance(leaf, torch.Tensor)}
    edges = inputs.get(path)
    if edges is None or edges.dtype != torch.int64 or edges.shape[1] < 4:
        return {}
    axes = {p: dim for p, dim in subject.source.axes(symbol).items() if p in inputs}
    specs = [(p, s) for p, s in subject.source.specs.items() if p in inputs]
    known = all(
        (s.values is None or s.values.indexes != symbol)
        and sum(symbol in dim.size.symbols() for dim in s.shape.axes if s.shape) == (p in axes)
        for p, s in specs
        if s.shape is not None
    )
    timed = any(_TIMES & set(p.rpartition(".")[2].lower().split("_")) for p in leaves)
    refers = any(_refers(p, leaf, edges.shape[1]) for p, leaf in leaves.items() if p != path)
    if timed or refers or not known:
        return {}
    return dict(sorted(axes.items(), key=lambda item: not inputs[item[0]].is_floating_point()))


def _refers(path: str, leaf: object, edges: int) -> bool:
    """Say whether an input may hold numbers of edges, or how many of them belong together."""
    if not isinstance(leaf, torch.Tensor):
        return isinstance(leaf, int) and not isinstance(leaf, bool) and leaf > 1
    if leaf.is_floating_point() or leaf.is_complex() or not leaf.numel():
        return False
    name = path.rpartition(".")[2].lower()
    named = any(word in name for word in _REFERS) and "label" not in name and "batch" not in name
    return named or edges in (int(leaf.sum()), int(leaf.max()), int(leaf.unique().numel()))


def edge_orders(subject: Subject, axes: Mapping[str, int]) -> Iterator[tuple[Batch, Batch, Tensor]]:
    """Iterate over two batches with the same edges, and the edge of the first at each place of the second.

    Each keeps a convention that models have for the order of edges: those of one node in their order, as
    events and duplicates have it; an edge beside its reverse; one half the reverse of the other; sorted
    by target or by source, unless edges of a real batch are not. Where all edges stand in one place, a batch is the same twice.
    """
    batch, path = subject.batch(), subject.source.edges
    edges = batch.tensors()[path[0] if path else ""].cpu()
    size = edges.shape[1]
    generator = torch.Generator().manual_seed(subject.seed)
    half = torch.randperm(size // 2, generator=generator)
    last = torch.arange(2 * len(half), size)
    pairs = torch.stack([2 * half, 2 * half + 1], 1).flatten()
    kept = [_swapped(edges), torch.cat([pairs, last]), torch.cat([half, half + len(half), last])]
    for order in kept:
        yield batch, turned(subject, batch, axes, order), order
    for ends in edges.flip(0):
        if batch.origin == "real" and not torch.equal(ends, ends.sort().values):
            continue
        first = turned(subject, batch, axes, ends.argsort(stable=True))
        mixed = torch.randperm(size, generator=generator)
        order = mixed[ends.sort().values[mixed].argsort(stable=True)]
        yield first, turned(subject, first, axes, order), order


def _swapped(edges: Tensor) -> Tensor:
    """Return an order in which neighbouring edges without a common node have changed places, several times."""
    ends = [set(pair) for pair in edges.T.tolist()]
    order = list(range(len(ends)))
    for turn in range(_PASSES):
        for at in range(turn % 2, len(order) - 1, 2):
            if not ends[order[at]] & ends[order[at + 1]]:
                order[at : at + 2] = order[at + 1], order[at]
    return torch.tensor(order)


def farthest(
    subject: Subject, outputs: Sequence[Any], order: Tensor, allowed: float
) -> tuple[str, float]:
    """Return which output another order of the edges moves farthest, and how far.

    Scores of edges may follow their order; of what has no dimension of the edges' number, the values may
    be in another order, as those of edges that are chosen by a mask. Outputs with a dimension that follows
    the number of edges otherwise, as one of edges and nodes does, are left out.

    Args:
        subject: The model.
        outputs: What it gave for two batches of :func:`edge_orders`.
        order: The edge of the first at each place of the second.
        allowed: Beyond this, one more forward tells which dimensions follow the number of edges.
    """
    first, second = map(trees.floats, outputs)
    gaps = {"": 0.0}
    for path, tensor in first.items():
        if (other := second.get(path)) is None or other.shape != tensor.shape:
            continue
        dims = [dim for dim, size in enumerate(tensor.shape) if size == len(order)]
        moved = [tensor.index_select(dim, order.to(tensor.device)) for dim in dims]
        if not dims:
            tensor, other = tensor.flatten().sort().values, other.flatten().sort().values
        gaps[path] = min(trees.apart(other, wanted) for wanted in (tensor, *moved))
    if max(gaps.values()) > allowed and (edges := subject.source.edges) is not None:
        fewer = len(order) > subject.source.symbols[edges[1]].low
        batch = subject.at(**{edges[1]: len(order) + (-1 if fewer else 1)})
        made = {} if batch is None else trees.floats(subject.forward(batch))
        for path, tensor in first.items():
            sizes = zip(tensor.shape, made[path].shape if path in made else (), strict=False)
            if path not in made or any(a != b and a != len(order) for a, b in sizes):
                gaps.pop(path, None)
    return max(gaps.items(), key=lambda item: item[1])
