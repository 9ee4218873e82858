"""Samples that an index tells apart, as the graphs of one batch: whose entries are whose, and other values for some."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..lean import dataclass
from ..objects import trees

if TYPE_CHECKING:
    from collections.abc import Collection

    from .batch import Batch

_WHOLE = (torch.int64, torch.int32)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Groups:
    """The groups into which an integer vector sorts the entries of a batch.

    Attributes:
        path: Of that vector.
        index: Its values, int64 ``[N]``: each from 0 on occurs, in this order.
        count: How many groups there are.
        features: The inputs that hold something of each entry, in dimension 0.
        pairs: Of each input of pairs of entries, such as edges, the dimension along which the pairs
            stand; -1 of an adjacency matrix. None of them joins two groups.
        linked: Whether pairs are given at all, in two groups at least.
    """

    path: str
    index: Tensor
    count: int
    features: tuple[str, ...]
    pairs: dict[str, int]
    linked: bool

    def others(self, group: int) -> Tensor:
        """Return all groups but one, int64."""
        every = torch.arange(self.count)
        return every[every != group]


def groups_in(batch: Batch) -> Groups | None:
    """Return the groups of a batch's entries; None where no index sorts them, or something may join two groups.

    The index is known by its values alone: of an integer vector, sorted as a collated batch has it, in which
    each number from 0 on occurs. Where two inputs could be the index, or where the meaning of an integer
    input is not known, there are no groups.
    """
    leaves = {p: leaf for p, leaf in batch.input_leaves() if isinstance(leaf, Tensor)}
    sparse = any(leaf.layout != torch.strided for leaf in leaves.values())
    if any(leaf.is_meta or leaf.is_nested for leaf in leaves.values()) or sparse:
        return None
    found = [path for path, leaf in leaves.items() if _sorts(leaf)]
    if len(found) != 1:
        return None
    path = found[0]
    index = leaves.pop(path).cpu().long()
    size, count = len(index), int(index[-1]) + 1
    pairs, ends = _pairs(leaves, size, count)
    known = (size, count, count + 1, *(leaves[p].shape[d] for p, d in pairs.items() if d >= 0))
    as_long = [p for p, t in leaves.items() if p not in pairs and t.dim() and t.shape[0] == size]
    mistakable = size == count + 1 or (size in known[3:] and len(as_long) > 1)
    if mistakable or any(_unknown(p, t, known, pairs) for p, t in leaves.items()):
        return None
    for first, second in ends:
        within = (first >= 0) & (first < size) & (second >= 0) & (second < size)
        if not bool(within.all()) or bool((index[first] != index[second]).any()):
            return None
        if len(first) and int(torch.maximum(first, second).max()) < count:
            return None  # these may be numbers of groups
    linked = any(len(index[first].unique()) > 1 for first, _ in ends)
    features = _features(leaves, size, index, pairs)
    if not features:
        return None
    return Groups(path=path, index=index, count=count, features=features, pairs=pairs, linked=linked)  # fmt: skip


def _sorts(leaf: Tensor) -> bool:
    """Say whether a vector sorts its entries into groups: 0, 0, 1, 1, 1, 2 and so on."""
    if leaf.dim() != 1 or leaf.dtype not in _WHOLE or len(leaf) < 4 or int(leaf[0]) != 0:
        return False
    steps = leaf.diff()
    return bool(((steps == 0) | (steps == 1)).all()) and 1 < int(leaf[-1]) + 1 < len(leaf)


def _pairs(
    leaves: dict[str, Tensor], size: int, count: int
) -> tuple[dict[str, int], list[tuple[Tensor, Tensor]]]:
    """Return the inputs that are pairs of entries, with the dimension of the pairs, and both ends of all of them."""
    pairs: dict[str, int] = {}
    ends: list[tuple[Tensor, Tensor]] = []
    flat: dict[int, list[str]] = {}
    for path, leaf in leaves.items():
        shape = tuple(leaf.shape)
        if shape == (size, size):  # an adjacency matrix
            ends.append(_both(leaf.cpu().nonzero(), 1))
            pairs[path] = -1
        elif leaf.dtype in _WHOLE and leaf.dim() == 2 and 2 in shape and shape[0] != size:
            dim = 1 if shape[0] == 2 else 0
            ends.append(_both(leaf.cpu().long(), 1 - dim))
            pairs[path] = dim
        elif leaf.dtype in _WHOLE and leaf.dim() == 1 and shape[0] not in (size, count, count + 1):
            flat.setdefault(shape[0], []).append(path)
    for paths in flat.values():
        for two in combinations(paths, 2):  # the sources and the targets of edges
            ends.append((leaves[two[0]].cpu().long(), leaves[two[1]].cpu().long()))
            pairs |= dict.fromkeys(two, 0)
    return pairs, ends


def _both(pairs: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    return pairs.select(dim, 0), pairs.select(dim, 1)


def _unknown(path: str, leaf: Tensor, known: Collection[int], pairs: Collection[str]) -> bool:
    """Say whether it is not known what the integers of an input refer to: they are none of an entry, pair or group."""
    return leaf.dtype in _WHOLE and path not in pairs and leaf.dim() > 0 and leaf.shape[0] not in known  # fmt: skip


def _features(
    leaves: dict[str, Tensor], size: int, index: Tensor, pairs: Collection[str]
) -> tuple[str, ...]:
    """Return the inputs that say something of each entry: floating ones, or else whole numbers that are kinds of it."""
    own = [p for p, t in leaves.items() if t.dim() and t.shape[0] == size and p not in pairs]
    floating = tuple(p for p in own if leaves[p].is_floating_point())
    return floating or tuple(p for p in own if _kinds(leaves[p], index))


def _kinds(leaf: Tensor, index: Tensor) -> bool:
    """Say whether whole numbers are kinds, such as those of atoms: not entries of the same group, and not in order."""
    if leaf.dtype not in _WHOLE:
        return False
    columns = leaf.cpu().long().reshape(len(index), -1)
    inside = (columns >= 0) & (columns < len(index))
    same = index[columns.clamp(0, len(index) - 1)] == index[:, None]
    refers = (inside & same).all(0) & (columns.amax(0) >= len(index) // 2)
    in_order = (columns.diff(dim=0) >= 0).all(0) & (columns.amin(0) < columns.amax(0))
    return not bool((refers | in_order).any())


def moved(batch: Batch, groups: Groups, which: Collection[int]) -> Batch | None:
    """Return the batch with the features of some groups' entries taken from other entries; None where these are equal.

    Args:
        batch: The batch.
        groups: Of it.
        which: The groups to move; everything of the others, and the index and pairs of all, stay.
    """
    own = dict(batch.input_leaves())
    size = len(groups.index)
    rows = torch.isin(groups.index, torch.tensor(sorted(which))).nonzero()[:, 0]
    for shift in (len(rows), size // 2, 1, size - 1):
        source = torch.arange(size)
        source[rows] = (rows + shift) % size
        taken = {p: own[p].detach()[source.to(own[p].device)] for p in groups.features}
        if any(not trees.same(taken[p], own[p]) for p in groups.features):
            break
    else:
        return None
    return batch.map(lambda path, leaf: taken.get(path, leaf), targets=False)


def shortened(batch: Batch, groups: Groups) -> Batch | None:
    """Return the batch without half of the last group's entries; None where it is not known what goes with them.

    Groups of one size may be told apart by that size: they stay as they are.
    """
    sizes = groups.index.bincount()
    size, last = len(groups.index), int(sizes[-1])
    kept = size - last // 2
    leaves = dict(batch.input_leaves())
    if len(sizes.unique()) == 1 or kept == size or any(_counts(v, size) for v in leaves.values()):
        return None
    masks: dict[int, Tensor] = {}
    for path, dim in groups.pairs.items():
        if dim < 0 or leaves[path].dim() == 1:
            return None
        mask = (leaves[path] < kept).all(1 - dim)
        if masks.setdefault(mask.numel(), mask) is not mask:
            return None
    if groups.count in masks:
        return None

    def cut(path: str, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or not leaf.dim():
            return leaf
        if path in groups.pairs:
            dim = groups.pairs[path]
            return leaf.index_select(dim, masks[leaf.shape[dim]].nonzero()[:, 0])
        if leaf.shape[0] == size:
            return leaf[:kept]
        return leaf[masks[leaf.shape[0]]] if leaf.shape[0] in masks else leaf

    return batch.map(cut, targets=False)


def _counts(leaf: Any, size: int) -> bool:
    """Say whether an input may hold numbers of entries: one that is all of them, or such up to each group."""
    if isinstance(leaf, Tensor):
        whole = leaf.dtype in _WHOLE and leaf.numel() > 0
        return whole and size in (int(leaf.max()), int(leaf.sum()))
    return type(leaf) is int and leaf == size
