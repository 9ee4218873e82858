"""Do two datasets share samples? Compared by indices, by stored rows, or by what reading gives."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Hashable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import ConcatDataset, Subset

from ..lean import dataclass
from .contents import Contents, Held
from .describing import input_digest
from .snapshot import put_back
from .validity import read, spread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .plan import Part

MOST_ROWS = 100_000
MOST_READ = 10_000
SKETCH = 512
SHORTEST_BYTES = 256
"""Shorter stored bytes may be a key or a file name; equal ones in two places can be different
samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """Samples of one dataset that another one also holds.

    Attributes:
        how: ``indices`` of a common dataset, stored ``rows`` of an array, or ``contents`` as read.
        where: Path of the compared array, in both; empty otherwise.
        pairs: First shared samples: index in the one and in the other, at most 8.
        shared: How many samples of the second dataset stand in the first.
        compared: How many samples of each were compared.
        total: How many there are.
        random: True where reading is random, so that equal samples may look unlike.
        repeated: Share of the first dataset's samples that it holds more than once: what overlap is to
            be expected of data that repeats itself.
    """

    how: str
    where: str
    pairs: tuple[tuple[int, int], ...]
    shared: int
    compared: tuple[int, int]
    total: tuple[int, int]
    repeated: float
    random: bool = False

    @property
    def is_complete(self) -> bool:
        """Say whether every sample was compared."""
        return self.compared == self.total


def overlap(first: Part, second: Part, *, seed: int = 0) -> Overlap | None:
    """Compare two map-style datasets, by the cheapest way that decides.

    Returns:
        What they share, or None where nothing of them can be compared.
    """
    total = (first.length, second.length)
    common = _same_base(first.dataset, second.dataset)
    if common is not None:
        return _compare("indices", "", common[0], common[1], total)
    names = _columns(first), _columns(second)
    for path in names[0]:
        if path in names[1]:
            rows = _rows(names[0][path], total[0]), _rows(names[1][path], total[1])
            return _compare("rows", path, rows[0], rows[1], total)
    sketches = _digests(first, seed, sketch=True), _digests(second, seed, sketch=True)
    if not sketches[0] or not sketches[1]:
        return None
    random = any(
        _digests(part, seed + 1, _spread(part)[:8], sketch=True).items() - found.items()
        for part, found in zip((first, second), sketches, strict=True)
    )
    seen = Counter([*sketches[0].values(), *sketches[1].values()])
    contents = [
        found | _digests(part, seed, [index for index, key in found.items() if seen[key] > 1])
        for part, found in zip((first, second), sketches, strict=True)
    ]
    return replace(_compare("contents", "", contents[0], contents[1], total), random=random)


_Keys = dict[int, Hashable]


def _compare(how: str, where: str, first: _Keys, second: _Keys, total: tuple[int, int]) -> Overlap:
    places: dict[Hashable, int] = {}
    for index, key in first.items():
        places.setdefault(key, index)
    pairs = [(places[key], index) for index, key in second.items() if key in places]
    counts = Counter(first.values())
    repeated = sum(count for count in counts.values() if count > 1)
    return Overlap(
        how=how,
        where=where,
        pairs=tuple(pairs[:8]),
        shared=len(pairs),
        compared=(len(first), len(second)),
        total=total,
        repeated=repeated / max(len(first), 1),
    )


def _same_base(first: Any, second: Any) -> tuple[_Keys, _Keys] | None:
    """Return the indices that two subsets take of one dataset, or None."""
    one, base = _indices(first)
    other, base_other = _indices(second)
    if base is not base_other:
        return None
    return dict(enumerate(one)), dict(enumerate(other))


def _indices(dataset: Any) -> tuple[list[Hashable], Any]:
    """Follow nested subsets down to the dataset that they take their samples of."""
    chain = []
    while isinstance(dataset, Subset):
        chain.append(dataset.indices)
        dataset = dataset.dataset
    if isinstance(dataset, ConcatDataset) and not chain:
        return [], object()
    found: list[Hashable] = list(range(len(dataset)))
    for indices in reversed(chain):
        found = [found[int(index)] for index in indices]
    return found, dataset


def _columns(part: Part) -> dict[str, Held]:
    """Return the stored arrays and lists of bytes that have one row of data per sample, those with most data first.

    Lists of file names are left out: equal names in two folders are different samples.
    """
    if isinstance(part.dataset, Subset | ConcatDataset):
        return {}
    count = part.length
    contents = Contents(part.dataset, spread(count, 8))
    held = [
        one
        for one in contents.arrays
        if one.path
        and len(one.value.shape)
        and len(one.value) == count
        and not _is_label(one.value)
    ]
    held += [one for one in contents.containers if one.path and _is_encoded(one.value, count)]
    return {one.path: one for one in sorted(held, key=lambda one: -_row_size(one.value))}


def _is_encoded(value: Any, count: int) -> bool:
    """Say whether a list holds one encoded sample for each: compressed images, serialised records."""
    return (
        isinstance(value, list | tuple)
        and len(value) == count
        and all(isinstance(row, bytes) and len(row) >= SHORTEST_BYTES for row in value)
    )


def _row_size(value: Any) -> int:
    if not len(value):
        return 0
    return len(value[0]) if isinstance(value[0], bytes) else int(value[0].nbytes)


def _is_label(value: Any) -> bool:
    """Say whether a column holds single whole numbers: classes, not samples."""
    if isinstance(value, torch.Tensor):
        return value.dim() == 1 and not value.is_floating_point()
    return bool(value.ndim == 1 and value.dtype.kind != "f")


def _rows(held: Held, count: int) -> _Keys:
    value = held.value
    if isinstance(value, list | tuple):
        return {index: value[index] for index in spread(count, MOST_ROWS)}
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        if "numpy" not in sys.modules:
            return {
                index: tuple(value[index].reshape(-1).tolist())
                for index in spread(count, MOST_ROWS)
            }
        value = (value.float() if value.dtype == torch.bfloat16 else value).numpy()
    return {index: bytes(value[index].tobytes()) for index in spread(count, MOST_ROWS)}


def _spread(part: Part) -> tuple[int, ...]:
    return spread(part.length, MOST_READ)


def _digests(
    part: Part, seed: int, places: Sequence[int] | None = None, *, sketch: bool = False
) -> _Keys:
    """Read samples and digest their inputs, under one seed for all, so that augmentation repeats.

    Args:
        part: Of which dataset.
        seed: Set before every read.
        places: Which samples; up to `MOST_READ`, evenly spread, where it is not given.
        sketch: Look at `SKETCH` elements of a tensor alone. Hashing all of it takes as long as reading
            it does; few samples are alike in these, and those are read again.
    """
    places = _spread(part) if places is None else places
    if not places:
        return {}
    found: _Keys = {}
    with put_back(part.dataset, tuple(places[:256])):
        for index in places:
            sample = read(part.dataset, index, seed)
            if (digest := input_digest(sample, SKETCH if sketch else None)) is not None:
                found[index] = digest
    return found
