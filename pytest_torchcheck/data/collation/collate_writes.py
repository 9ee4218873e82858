"""Does a collate function write into samples that the dataset keeps, mark padding as real, or shift indices?"""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import torch

from ... import sources
from ...findings import Culprit, Finding
from ...lean import dataclass
from ...record.tracing import find_line
from ...verdicts import suspicious, violated
from ..relations.mutation import ReadingError, read_under
from ..snapshot import put_back
from ..validity import spread
from ..wording import called, dataset_culprit, few, line_ref

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

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
    name = called(collate)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Shifted:
    """Indices of joined samples, each shifted by the rows of the sample before it alone.

    Attributes:
        path: Of the indices in a batch.
        table: Of what they are indices of: the samples' rows, one sample behind the other.
        sizes: How many rows each sample has.
        shifts: By how much the indices of each are shifted.
        made: The line of the collate function that makes the shifts.
    """

    path: str
    table: str
    sizes: tuple[int, ...]
    shifts: tuple[int, ...]
    made: Location | None = None


def wrongly_shifted(
    whole: dict[str, torch.Tensor], alone: Sequence[dict[str, torch.Tensor]]
) -> Shifted | None:
    """Find whole numbers that are joined along their last dimension, each sample's shifted by the size of the one before.

    Args:
        whole: Tensors of a batch by path.
        alone: The same of each sample by itself.

    Shifts that fall again are no running sum of sizes of any kind: samples then share rows.
    """
    tables = [
        name
        for name, value in whole.items()
        if value.dim() and _is_joined(value, [one[name] for one in alone])
    ]
    for path in whole:
        shifts = _shifts(whole[path], [one[path] for one in alone])
        if shifts is None or all(b >= a for a, b in pairwise(shifts)):
            continue
        for table in tables:
            sizes = [len(one[table]) for one in alone]
            inside = all(
                int(one[path].min()) >= 0 and int(one[path].max()) < size
                for one, size in zip(alone, sizes, strict=True)
            )
            before = [0, *sizes[:-1]]
            if inside and shifts == before and len(set(before)) > 3:
                return Shifted(path=path, table=table, sizes=tuple(sizes), shifts=tuple(shifts))
    return None


def _is_joined(value: torch.Tensor, parts: list[torch.Tensor]) -> bool:
    """Say whether a tensor is these parts, one behind the other."""
    if any(one.dim() != value.dim() or one.shape[1:] != value.shape[1:] for one in parts):
        return False
    return sum(map(len, parts)) == len(value) and bool(torch.equal(torch.cat(parts), value))


def _shifts(value: torch.Tensor, parts: list[torch.Tensor]) -> list[int] | None:
    """Return the number that was added to each part before they were joined, or None where it was not so."""
    if value.dtype not in (torch.int32, torch.int64) or not value.dim():
        return None
    if any(one.shape[:-1] != value.shape[:-1] or not one.numel() for one in parts):
        return None
    widths = [one.shape[-1] for one in parts]
    if sum(widths) != value.shape[-1]:
        return None
    added = [a - b for a, b in zip(value.split(widths, dim=-1), parts, strict=True)]
    if any(bool((one != one.flatten()[0]).any()) for one in added):
        return None
    return [int(one.flatten()[0]) for one in added]


def shifts_watcher(shifts: Sequence[int]) -> Any:
    """Return a watcher that says True at the line after which a local variable holds these shifts."""

    def holds(value: Any) -> bool:
        if isinstance(value, torch.Tensor):
            return value.shape == (len(shifts),) and value.tolist() == list(shifts)
        return isinstance(value, list) and value == list(shifts)

    def watcher(frame: FrameType, event: str, line: int) -> bool:
        return event != "call" and any(holds(value) for value in frame.f_locals.values())

    return watcher


def indices_shifted(part: Part, found: Shifted) -> Finding:
    """A collate function shifts indices by the sample before instead of all samples before."""
    collate: Any = part.plan.collate_fn
    name = called(collate)
    place = found.made or sources.of_object(collate)
    short = sources.assigned_name(found.made) if found.made is not None else ""
    right = list(accumulate([0, *found.sizes[:-1]]))
    return violated(
        "collate-shift",
        f"{part.prefix}{name} shifts {found.path} by the size of the previous sample, not of "
        "all previous samples",
        culprits=(
            Culprit("dataset", short or found.path, "the shifts", place),
            Culprit("function", name, "collate function", sources.of_object(collate)),
        ),
        observed=f"samples of {few(found.sizes)} rows are shifted by {few(found.shifts)}; their "
        f"rows begin at {few(right)}",
        cause="the shift is not a cumulative sum: from the third sample on, indices refer to "
        "other samples",
        because=f"{found.table} holds the rows of the samples one after another, and {found.path} "
        "is each sample's own plus one number",
        fix=f"take the cumulative sum at {line_ref(place)}: sizes[:-1].cumsum(0) after a leading 0",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LongMask:
    """A mask that is too long by the same number of positions in every sample that has room for them.

    Attributes:
        path: Of the mask in a batch.
        extra: How many positions of padding it marks as real.
        own: Length of the first such sample.
        samples: How many samples have room, and are all marked so.
        certain: Whether what pads stands in no sample: an end of sequence that also pads may be
            marked once on purpose.
        made: The line of the collate function that makes it.
    """

    path: str
    extra: int
    own: int
    samples: int
    certain: bool
    made: Location | None = None


def too_long(
    whole: dict[str, torch.Tensor], alone: Sequence[dict[str, torch.Tensor]], rows: Sequence[int]
) -> LongMask | None:
    """Compare masks of a batch with those of its samples by themselves, where nothing is padded.

    Args:
        whole: Tensors of a batch by path.
        alone: The same of each sample by itself.
        rows: The row of the batch that holds each of them.

    A mask is a matrix of zeros and ones which holds ones alone where a sample stands by itself.
    """
    for path, mask in whole.items():
        if mask.dim() != 2 or not bool(((mask == 0) | (mask == 1)).all()):
            continue
        own = [one[path] for one in alone]
        if any(one.dim() != 2 or len(one) != 1 or not bool((one == 1).all()) for one in own):
            continue
        lengths = [one.shape[1] for one in own]
        pairs = list(zip(rows, lengths, strict=True))
        extra = [int(mask[row].sum()) - length for row, length in pairs]
        room = [mask.shape[1] - length for length in lengths]
        most = max(extra)
        if most <= 0 or any(e != min(most, r) for e, r in zip(extra, room, strict=True)):
            continue
        padded = [length for length, space in zip(lengths, room, strict=True) if space > most]
        if len(set(padded)) > 1:  # one that marks all padding is no mask of it
            certain = _pads_apart(whole, alone, mask, pairs)
            return LongMask(
                path=path, extra=most, own=padded[0], samples=len(padded), certain=certain
            )
    return None


def _pads_apart(
    whole: dict[str, torch.Tensor],
    alone: Sequence[dict[str, torch.Tensor]],
    mask: torch.Tensor,
    pairs: Sequence[tuple[int, int]],
) -> bool:
    """Say whether a matrix of whole numbers beside the mask is padded by a number that no sample holds."""
    for path, ids in whole.items():
        if (
            ids is mask
            or ids.shape != mask.shape
            or ids.is_floating_point()
            or ids.dtype == torch.bool
        ):
            continue
        pads = {int(value) for row, length in pairs for value in ids[row, length:].unique()}
        if len(pads) == 1 and not any(bool((one[path] == min(pads)).any()) for one in alone):
            return True
    return False


def making_watcher(mask: torch.Tensor) -> Any:
    """Return a watcher that says True at the line after which a local variable is this mask."""

    def watcher(frame: FrameType, event: str, line: int) -> bool:
        return event != "call" and any(
            isinstance(value, torch.Tensor)
            and value.shape == mask.shape
            and bool((value == mask).all())
            for value in frame.f_locals.values()
        )

    return watcher


def entry_watcher(field: torch.Tensor) -> Any:
    """Return a watcher that says True at the line after which a variable, or an entry of its own, holds these values.

    A line that makes several entries of one dict or tuple at once is none.
    """
    sizes: dict[int, int] = {}
    at_once: set[int] = set()

    def watcher(frame: FrameType, event: str, line: int) -> bool:
        if event == "call":
            return False
        for one in tuple(frame.f_locals.values()):
            if _equal(one, field):
                return True
            if not isinstance(one, dict | tuple) or id(one) in at_once:
                continue
            values = list(one.values()) if isinstance(one, dict) else one
            added = len(values) - sizes.get(id(one), 0)
            sizes[id(one)] = len(values)
            if any(_equal(value, field) for value in values):
                if added <= 1:
                    return True
                at_once.add(id(one))
        return False

    return watcher


def _equal(value: object, field: torch.Tensor) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.shape == field.shape
        and value.dtype == field.dtype
        and torch.equal(value, field)
    )


def mask_too_long(part: Part, found: LongMask) -> Finding:
    """A collate function marks padding as real."""
    collate: Any = part.plan.collate_fn
    name = called(collate)
    place = found.made or sources.of_object(collate)
    short = sources.assigned_name(found.made) if found.made is not None else ""
    positions = f"{found.extra} position{'s' if found.extra > 1 else ''}"
    make = violated if found.certain else suspicious
    return make(
        "mask-too-long",
        f"{part.prefix}{name} marks {positions} of padding as real in every sample that is padded",
        culprits=(
            Culprit("dataset", short or found.path, "the mask", place),
            Culprit("function", name, "collate function", sources.of_object(collate)),
        ),
        location=place,
        observed=f"a sample of {found.own} positions has {found.own} alone, and "
        f"{found.own + found.extra} are marked in a batch; the same holds for all "
        f"{found.samples} samples with padding",
        cause="the mask is longer than the sample: the comparison with the length includes the "
        "length itself",
        because=f"{found.path} was computed for the same samples together and one by one",
        fix=f"use < at {line_ref(place)}: position < length",
    )
