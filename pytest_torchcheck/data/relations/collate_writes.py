"""Does making a batch change the dataset: a collate function that writes into samples which the dataset keeps?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...findings import Culprit, Finding
from ...record.tracing import find_line
from ...verdicts import violated
from ..reading import spread
from ..snapshot import put_back
from ..wording import dataset_culprit, few, line_ref
from .mutation import ReadingError, read_under

if TYPE_CHECKING:
    from ...findings import Location
    from ..plan import Part
    from ..snapshot import Change

_MOST = 8  # samples of the batch that is made


@dataclass(frozen=True, slots=True, kw_only=True)
class Collated:
    """What a collate function changed.

    Attributes:
        indices: Samples of the batch.
        change: What the dataset holds that it wrote to, of several the first.
        line: Where it did so, or None.
        after: How the next reading of these samples differs, as a clause.
    """

    indices: tuple[int, ...]
    change: Change
    line: Location | None
    after: str


def find_writes(part: Part, *, seed: int = 0) -> Collated | None:
    """Read samples, make a batch of them, and read them again under the same seed; the dataset is put back.

    Args:
        part: A map-style dataset whose samples are the same again under their seed.
        seed: Sample ``i`` is read after ``seed_process(seed + i)``.

    Returns:
        None where the samples are the same, where the dataset holds nothing that changed, and where
        no batch can be made, which ``samples-valid`` reports.
    """
    if part.plan.collate_fn is None or not part.plan.makes_batches:
        return None
    indices = spread(part.length, max(2, min(part.plan.batch_size or _MOST, _MOST)))
    with put_back(part.dataset, indices) as snapshot:
        samples: dict[int, object] = {}
        first = read_under(part, indices, seed, samples)
        before = {(id(change.held.value), change.held.path) for change in snapshot.changes()}
        try:
            part.plan.collate(list(samples.values()))
        except Exception:  # the user's collate function may raise anything; another check says so
            return None
        changes = [  # an attribute bound anew is meant: a batch may choose the size of the next ones
            change
            for change in snapshot.changes()
            if change.held.kind != "attribute"
            and (id(change.held.value), change.held.path) not in before
        ]
        if not changes:
            return None
        try:
            differing = [
                i for i, leaves in read_under(part, indices, seed).items() if leaves != first[i]
            ]
        except ReadingError as error:
            after = f"sample {error.index} can be read only once: {type(error.cause).__name__}: {error.cause}"
        else:
            if not differing:
                return None
            after = f"samples {few(differing)} differ when read again with the same seed"
        snapshot.restore()
        samples.clear()
        read_under(part, indices, seed, samples)
        line = find_line(
            lambda: part.plan.collate(list(samples.values())),
            lambda frame, event, line: event != "call" and snapshot.changed(changes[0].held),
        )
    return Collated(indices=indices, change=changes[0], line=line, after=after)


def written(part: Part, found: Collated) -> Finding:
    """Report a collate function that writes to the dataset."""
    collate = part.plan.collate
    name = getattr(collate, "__name__", type(collate).__name__)
    held = found.change.held.path or part.name
    at = found.line
    return violated(
        "dataset-mutated",
        f"{part.prefix}{name} writes to {held} when it collates a batch: the next read differs",
        culprits=(
            dataset_culprit(part, name, f"{found.change.elements} elements of {held} written", at),
            *((Culprit("call", at.text, "writes to the dataset", at),) if at else ()),
            dataset_culprit(
                part, held, "is returned by the dataset itself", found.change.held.location
            ),
        ),
        location=at or found.change.held.location,
        observed=found.after,
        cause=f"{part.name} returns its stored object, and {name} modifies it in place",
        because=f"{held} was unchanged after samples {few(found.indices)} were read, and has "
        f"changed after {name}",
        fix=f"do not modify the samples{f' at {line_ref(at)}' if at else ''}: read an entry "
        "instead of popping it, or copy the sample first",
        evidence={"samples": list(found.indices), "changed": held},
    )
