"""Does reading an item change the dataset, so that the next reading of it differs?"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from ...lean import dataclass
from ...record.tracing import find_line, line_of
from ..contents import Contents, Held, is_array
from ..describing import describe_sample, leaves
from ..explaining.returned_object import given_line
from ..snapshot import Change, Snapshot, put_back
from ..validity import read, spread

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from ...findings import Location
    from ..plan import Part

MOST_REREAD = 32
MOST_KEPT = 8  # samples that are looked at again after all others were read
_OTHER_SEED = 1_000_003  # a second stream of randomness, far from the first


@dataclass(frozen=True, slots=True, kw_only=True)
class Rereading:
    """Whether the same item under the same seed is the same after other readings.

    Attributes:
        indices: Items that were read three times: under seed a, under another seed, under a again.
        differing: Those whose first and last reading differ.
        paths: Leaves that differ.
        changes: Arrays of the dataset that the readings wrote to.
        held_randomness: True when the difference goes away once the dataset's own generators are put
            back: it is randomness, not damage.
        comparable: False where no sample could be compared.
        overwritten: Items whose sample changed while later items were read: one buffer serves them all.
        buffer: The stored array that such a sample shares its memory with, where it is one.
        fills: Whether a container of the dataset got entries by the first readings, fewer than
            these are.
        settles: Whether something stored was changed by them, and another seed changed nothing.
        ordered: Items that are others when all are read in the opposite order, from the same state.
        error: Item, type and message where an item can be read only once; None where all can.
    """

    indices: tuple[int, ...]
    differing: tuple[int, ...] = ()
    paths: tuple[str, ...] = ()
    changes: tuple[Change, ...] = ()
    held_randomness: bool = False
    comparable: bool = True
    overwritten: tuple[int, ...] = ()
    buffer: Held | None = None
    fills: bool = False
    settles: bool = False
    ordered: tuple[int, ...] = ()
    error: tuple[int, str] | None = None


def reread(part: Part, *, seed: int = 0, most: int = MOST_REREAD) -> Rereading:
    """Read items under a seed, under another, and under the first again; put the dataset back.

    The middle reading is what a next epoch does: a cache is filled once and then stays, while an
    in-place augmentation writes again, and the third reading shows it.

    Raises:
        ReadingError: An item cannot be read at all; :func:`~.reading.survey` reports it.
    """
    indices = spread(part.length, most)
    changes: tuple[Change, ...] = ()
    held = False
    with put_back(part.dataset, indices) as snapshot:
        kept: dict[int, Any] = {}
        first = read_under(part, indices, seed, kept)
        overwritten = tuple(
            i for i, sample in kept.items() if _paths(first[i], _digests(i, sample))
        )
        buffer = _buffer(snapshot.contents, kept[overwritten[0]]) if overwritten else None
        del kept
        filled = snapshot.filled()
        stores = snapshot.stored() and not snapshot.contents.generators
        fills = any(len(keys) < len(indices) for _, keys in filled)
        try:
            steady = read_under(part, indices, seed + _OTHER_SEED) == first
            last = read_under(part, indices, seed)
        except ReadingError as error:
            changes = tuple(snapshot.changes())
            return Rereading(
                indices=indices,
                differing=(error.index,),
                changes=changes,
                error=(error.index, f"{type(error.cause).__name__}: {error.cause}"),
            )
        differing = tuple(i for i in indices if _paths(first[i], last[i]))
        ordered: tuple[int, ...] = ()
        if differing:
            changes = tuple(snapshot.changes())
            held = _is_held(part, indices, seed, snapshot)
        elif steady and stores:
            snapshot.restore()
            other = read_under(part, indices[::-1], seed)
            ordered = tuple(i for i in indices if _paths(first[i], other[i]))
    return Rereading(
        indices=indices,
        differing=differing,
        paths=tuple(dict.fromkeys(path for i in differing for path in _paths(first[i], last[i]))),
        changes=changes,
        held_randomness=held,
        overwritten=overwritten,
        buffer=buffer,
        fills=fills,
        settles=steady and bool(filled),
        ordered=ordered,
        comparable=any(digest is not None for one in first.values() for _, digest in one),
    )


class ReadingError(Exception):
    """Reading an item raised; ``cause`` says what."""

    def __init__(self, index: int, cause: Exception) -> None:
        super().__init__(index)
        self.index, self.cause = index, cause


Read = dict[int, tuple[tuple[str, str | None], ...]]


def read_under(
    part: Part, indices: tuple[int, ...], seed: int, kept: dict[int, Any] | None = None
) -> Read:
    """Return each item's leaves and their digests, read under ``seed + index``.

    Args:
        part: The dataset.
        indices: Which items.
        seed: See above.
        kept: Where the first few samples are put, by index.

    Raises:
        ReadingError: An item cannot be read.
    """
    found: Read = {}
    for index in indices:
        try:
            sample = read(part.dataset, index, seed + index)
        except Exception as error:  # the user's dataset may raise anything
            raise ReadingError(index, error) from error
        if kept is not None and len(kept) < MOST_KEPT:
            kept[index] = sample
        found[index] = _digests(index, sample)
    return found


def _digests(index: int, sample: Any) -> tuple[tuple[str, str | None], ...]:
    return tuple((leaf.path, leaf.digest) for leaf in describe_sample(index, sample).leaves)


def _buffer(contents: Contents, sample: Any) -> Held | None:
    """Return the stored container that a sample is, the array that it lies in, or the container that it has a part of."""

    def holding(parts: list[Any]) -> Held | None:
        return next(
            (one for one in contents.containers if any(one.value is p for p in parts)), None
        )

    if (whole := holding([sample])) is not None:
        return whole
    arrays = [value for _, value in leaves(sample) if is_array(value)]
    for held in contents.arrays:
        shares = _sharing(held.value)
        if any(shares(value) for value in arrays):
            return held
    parts = sample.values() if isinstance(sample, dict) else sample
    return holding(list(parts)) if isinstance(sample, dict | list | tuple) else None


def _paths(
    a: tuple[tuple[str, str | None], ...], b: tuple[tuple[str, str | None], ...]
) -> list[str]:
    """Return the paths of leaves that can be compared and differ."""
    if [path for path, _ in a] != [path for path, _ in b]:
        return [""]
    return [
        path
        for (path, x), (_, y) in zip(a, b, strict=True)
        if x is not None and y is not None and x != y
    ]


def _is_held(part: Part, indices: tuple[int, ...], seed: int, snapshot: Snapshot) -> bool:
    """Say whether items repeat once only the dataset's own generators are put back."""
    if not snapshot.contents.generators:
        return False
    snapshot.restore()
    first = read_under(part, indices, seed)
    read_under(part, indices, seed + _OTHER_SEED)
    snapshot.restore_generators()
    return first == read_under(part, indices, seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """Where an item's reading writes into the dataset.

    Attributes:
        alias: The line that takes a piece of the stored array without copying it, or None.
        name: The local name it is bound to there.
        write: The line after which the stored array has changed, or None.
        largest: Largest absolute change of one element.
    """

    alias: Location | None
    name: str
    write: Location | None
    largest: float


def trace_write(part: Part, change: Change, *, seed: int = 0) -> Write:
    """Read one damaged item line by line and find where it is written to.

    Args:
        part: The dataset; put back afterwards.
        change: What :func:`reread` found.
        seed: As for :func:`reread`.
    """
    index = change.rows[0] if change.rows and change.rows[0] < part.length else 0
    return _trace(part, change.held, index, seed)


def trace_buffer(part: Part, found: Rereading, *, seed: int = 0) -> Write | None:
    """Read a sample line by line and find where the buffer that serves all of them is filled, and where it is handed out."""
    if found.buffer is None:
        return None
    written = _trace(part, found.buffer, found.overwritten[0], seed, last=True)
    handed = _handed(part, found.buffer, found.overwritten[0], seed)
    return written if handed is None else replace(written, alias=handed)


def _handed(part: Part, held: Held, index: int, seed: int) -> Location | None:
    """Return the line by which a function returns a leaf of the sample that is memory of a stored array."""
    shares = _sharing(held.value)
    with put_back(part.dataset, (index,)):
        sample = read(part.dataset, index, seed + index)
    path = next((p for p, leaf in leaves(sample) if is_array(leaf) and shares(leaf)), None)
    return None if path is None else given_line(part, index, path, seed + index)


def _trace(part: Part, held: Held, index: int, seed: int, *, last: bool = False) -> Write:

    def again() -> Any:
        return read(part.dataset, index, seed + index)

    with put_back(part.dataset, (index,)) as snapshot:
        written = find_line(
            again, lambda frame, event, line: event != "call" and snapshot.changed(held)
        )
        largest = _largest(held, snapshot)
        snapshot.restore()
        watcher = _AliasWatcher(held.value, last=last)
        alias = find_line(again, watcher) or watcher.place
    return Write(alias=alias, name=watcher.name, write=written, largest=largest)


def _largest(held: Held, snapshot: Snapshot) -> float:
    for one, rows, copy in snapshot.copies:
        if one.value is held.value:
            now = held.value if rows is None else held.value[list(rows)]
            pair = (torch.as_tensor(now).detach().double(), torch.as_tensor(copy).double())
            difference = (pair[0] - pair[1]).abs()
            return float(difference.nan_to_num(0.0).max()) if difference.numel() else 0.0
    return 0.0


class _AliasWatcher:
    """Says True once a local name shares memory with a stored array; with ``last``, notes the last one to do so instead."""

    def __init__(self, stored: Any, *, last: bool = False) -> None:
        self.stored, self.last = stored, last
        self.name = ""
        self.place: Location | None = None
        self._shares = _sharing(stored)
        self._known: set[tuple[FrameType, str]] = set()

    def __call__(self, frame: FrameType, event: str, line: int) -> bool:
        for name, value in frame.f_locals.items():
            if value is self.stored or (is_array(value) and self._shares(value)):
                if not self.last:
                    self.name = name
                    return True
                if event != "call" and (frame, name) not in self._known:
                    self.name, self.place = name, line_of(frame.f_code, line)
                self._known.add((frame, name))
        return False


def _sharing(stored: Any) -> Callable[[Any], bool]:
    """Return a function that says whether an array lies in the memory of a stored one."""
    if not is_array(stored):
        return lambda value: False
    numpy = sys.modules.get("numpy")

    def shares(value: Any) -> bool:
        if any(
            isinstance(one, torch.Tensor) and one.device.type != "cpu" for one in (stored, value)
        ):
            return False
        if isinstance(value, torch.Tensor) and value.layout != torch.strided:
            return False
        if isinstance(stored, torch.Tensor) and isinstance(value, torch.Tensor):
            return stored.untyped_storage().data_ptr() == value.untyped_storage().data_ptr()
        pair = [
            one.detach().numpy() if isinstance(one, torch.Tensor) else one
            for one in (stored, value)
        ]
        return numpy is not None and bool(numpy.may_share_memory(*pair))

    return shares
