"""Does a sample give another one's contents once that one has been read, because a cache has one key for both?

Two samples that fill the same entry are read under one seed: one by itself, and after the other.
Entries that are meant to be shared (a shard, a file of many samples) give the same both times.
"""

from __future__ import annotations

import ast
import functools
from dataclasses import field
from typing import TYPE_CHECKING, Any

from ... import sources
from ...findings import Culprit, Finding
from ...lean import dataclass
from ...record.tracing import find_line, line_of
from ...verdicts import suspicious, violated
from ..describing import describe_sample
from ..snapshot import Snapshot, put_back
from ..validity import read, spread
from ..wording import dataset_culprit, line_ref, where
from .mutation import MOST_REREAD

if TYPE_CHECKING:
    from collections.abc import Hashable
    from types import FrameType

    from ...findings import Location
    from ..contents import Held
    from ..describing import Sample
    from ..plan import Part
    from .mutation import Rereading

_PAIRS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Confusion:
    """Two samples that one entry of a container serves.

    Attributes:
        first, second: Their indices; the second gives the first's contents after it.
        path: Of the leaf that does.
        held: The container.
        key: Of the entry, as text.
        stored: The line that stores it.
        keyed: The line that makes its key, where that is another one.
        count: How many samples were read by themselves.
        keys: How many entries they filled.
        whole: Whether all arrays of the input are the first sample's: what is shared on purpose, as
            the anchor of a class, stands beside an array of the sample's own.
    """

    first: int
    second: int
    path: str
    held: Held = field(repr=False)
    key: str
    stored: Location | None
    keyed: Location | None
    count: int
    keys: int
    whole: bool


def find_confusion(part: Part, *, seed: int = 0) -> Confusion | None:
    """Read samples by themselves, see which entries they fill, and compare those that share one.

    Cost: one reading and putting back of up to `MOST_REREAD` samples; for datasets alone that fill
        fewer entries.
    """
    places = spread(part.length, MOST_REREAD)
    with put_back(part.dataset, places) as snapshot:
        owners = _owners(part, places, seed, snapshot)
        kept = {id(held.value): held for held in snapshot.contents.containers}
        pairs = [
            (held, key, indices[0], other)
            for (held, key), indices in owners.items()
            for other in indices[1:4]
        ]
        for held, key, first, second in pairs[:_PAIRS]:
            found = _confused(part, first, second, seed, snapshot)
            if found is not None:
                path, whole = found
                snapshot.restore()
                watcher = _Storing(snapshot, kept[held])
                stored = find_line(functools.partial(read, part.dataset, first, seed), watcher)
                return Confusion(
                    first=first,
                    second=second,
                    path=path,
                    held=kept[held],
                    key=repr(key)[:60],
                    stored=stored,
                    keyed=watcher.keyed,
                    count=len(places),
                    keys=len([one for one, _ in owners if one == held]),
                    whole=whole,
                )
    return None


def _owners(
    part: Part, places: tuple[int, ...], seed: int, snapshot: Snapshot
) -> dict[tuple[int, Hashable], list[int]]:
    """Return which samples fill an entry when read by themselves, by container and key."""
    owners: dict[tuple[int, Hashable], list[int]] = {}
    for index in places:
        snapshot.restore()
        read(part.dataset, index, seed)
        for held, keys in snapshot.filled():
            for key in keys:
                owners.setdefault((id(held.value), key), []).append(index)
    return owners


def _confused(
    part: Part, first: int, second: int, seed: int, snapshot: Snapshot
) -> tuple[str, bool] | None:
    """Return the leaf of the second sample that is the first one's after it, and another one by itself; see ``whole``."""

    def described(index: int) -> Sample:
        return describe_sample(index, read(part.dataset, index, seed))

    snapshot.restore()
    before, after = _digests(described(first)), described(second)
    if not any(leaf.digest == before.get(leaf.path) for leaf in after.leaves):
        return None
    alone = []
    for _ in range(2):  # what no seed repeats tells nothing
        snapshot.restore()
        alone.append(_digests(described(second)))
    arrays = [leaf for leaf in after.inputs if leaf.kind in ("tensor", "array")]
    whole = all(leaf.digest == before.get(leaf.path) for leaf in arrays)
    for leaf in after.leaves:
        own = alone[0].get(leaf.path)
        known = leaf.digest is not None and own is not None and own == alone[1].get(leaf.path)
        if known and leaf.digest == before.get(leaf.path) != own:
            return leaf.path, whole
    return None


def _digests(sample: Sample) -> dict[str, str | None]:
    return {leaf.path: leaf.digest for leaf in sample.leaves}


class _Storing:
    """Says True at the line that stores an entry, and knows then which line made its key.

    Args:
        snapshot: Of the dataset before the reading.
        held: The container.
    """

    def __init__(self, snapshot: Snapshot, held: Held) -> None:
        self.snapshot, self.held = snapshot, held
        self.keyed: Location | None = None
        self._values: dict[FrameType, dict[str, Any]] = {}
        self._made: dict[tuple[FrameType, str], int] = {}

    def __call__(self, frame: FrameType, event: str, line: int) -> bool:
        known, now = self._values.get(frame), dict(frame.f_locals)
        self._values[frame] = now
        if event == "call":
            return False
        for name, value in now.items():
            if known is not None and (name not in known or known[name] is not value):
                self._made[frame, name] = line
        if not self.snapshot.changed(self.held):
            return False
        self.keyed = self._key_line(frame, line)
        self._values.clear()
        return True

    def _key_line(self, frame: FrameType, line: int) -> Location | None:
        """Return the line that made the variables which the storing line has for a key; a caller's, of an argument."""
        names = _key_names(frame.f_code.co_filename, line)
        for name in names:
            if (frame, name) in self._made:
                return line_of(frame.f_code, self._made[frame, name])
        caller = frame.f_back
        if not names or caller is None or sources.rank(caller.f_code.co_filename) < 2:
            return None
        return line_of(caller.f_code, caller.f_lineno)


def _key_names(file: str, line: int) -> list[str]:
    """Return the variables that are the key of the entry which a line stores."""
    keys: list[ast.expr] = []
    for node in sources.nodes(file):
        if not sources.holds(node, line):
            continue
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            keys.append(node.slice)
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("setdefault", "__setitem__")
        ):
            keys += node.args[:1]
    flat = [e for key in keys for e in (key.elts if isinstance(key, ast.Tuple) else [key])]
    return [each.id for each in flat if isinstance(each, ast.Name)]


def confused(part: Part, found: Confusion) -> Finding:
    """A cache that takes one sample for another."""
    name = found.held.path or part.name
    place = found.keyed or found.stored
    make = violated if found.whole else suspicious
    return make(
        "sample-confused",
        f"{part.prefix}sample {found.second} gives {where(found.path)} of sample {found.first} "
        f"after that one was read: {name} has one entry for both",
        culprits=(
            dataset_culprit(
                part, name, f"key {found.key} for both", found.stored or found.held.location
            ),
            *((Culprit("dataset", "key", "created here", found.keyed),) if found.keyed else ()),
        ),
        location=place,
        observed=f"{found.count} samples, each read alone, fill {found.keys} entries of {name}",
        cause=f"the key of {name} is the same for different samples",
        because=f"read alone, sample {found.second} has another {where(found.path)}, equal in two "
        f"reads; both samples store {name}[{found.key}] at {line_ref(found.stored)}",
        fix=f"use a unique key at {line_ref(place)}: the whole path, or the index",
        evidence={"samples": [found.first, found.second]},
    )


def in_order(part: Part, again: Rereading, *, seed: int = 0) -> Finding:
    """Samples that depend on which ones were read before them."""
    first, last = again.indices[0], again.ordered[-1]
    with put_back(part.dataset, again.indices) as snapshot:
        run = functools.partial(read, part.dataset, first, seed + first)
        place = find_line(run, lambda _f, event, _l: event != "call" and snapshot.stored())
    name = (sources.assigned_name(place) if place is not None else "") or part.name
    return violated(
        "sample-by-order",
        f"{part.prefix}sample {last} depends on which samples were read before it",
        culprits=(dataset_culprit(part, name, "is decided by the first reading", place),),
        location=place or sources.of_object(type(part.dataset)),
        observed=f"{len(again.ordered)} of {len(again.indices)} samples differ when the same ones are "
        "read in the opposite order, with the same seeds",
        cause="a reading stores something that later readings use: each worker, which reads other "
        "samples first, stores something else",
        because=f"both orders started from the same state; {line_ref(place)} changes it"
        if place is not None
        else "both orders started from the same state",
        fix="compute it once in __init__, over all samples, or from the sample alone",
        evidence={"samples": list(again.ordered)},
    )
