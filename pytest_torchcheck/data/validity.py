"""What is wrong with samples: errors, NaN, shapes and dtypes that vary, batches that cannot be made."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_torchcheck import sources
from pytest_torchcheck.probes.finiteness import find_nonfinite
from pytest_torchcheck.state import isolated

from ..printable import message_of
from ..record.tracing import find_line, line_of
from .contents import Contents, Held, is_array
from .describing import Leaf, Sample, describe_leaf, leaves, target_path
from .reading import Survey, read
from .snapshot import Snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import CodeType, FrameType

    import torch

    from pytest_torchcheck.findings import Location

    from .plan import Part


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    """Leaves of one path that are not alike in all samples.

    Attributes:
        path: Of the leaf.
        usual, other: What most samples have, and what the first deviating one has.
        index: That sample.
        count: How many samples deviate from the usual.
        odd: That sample and up to two more that are as it is.
        alike: Up to three samples that are as most.
    """

    path: str
    usual: str
    other: str
    index: int
    count: int
    odd: tuple[int, ...]
    alike: tuple[int, ...]

    @classmethod
    def among(cls, path: str, values: Sequence[tuple[int, Any]]) -> Deviation | None:
        """Return how some of these samples (index, value) deviate, or None where all values are equal."""
        usual, count = Counter(value for _, value in values).most_common(1)[0]
        if count == len(values):
            return None
        index, other = next((index, value) for index, value in values if value != usual)
        return cls(
            path=path,
            usual=str(usual),
            other=str(other),
            index=index,
            count=len(values) - count,
            odd=tuple(index for index, value in values if value == other)[:3],
            alike=tuple(index for index, value in values if value == usual)[:3],
        )


def deviations(survey: Survey, of: Callable[[Leaf], Any]) -> list[Deviation]:
    """Compare one property of every leaf over the samples, by the leaf's path."""
    found = []
    paths: dict[str, list[tuple[int, Any]]] = {}
    for sample in survey.samples:
        for leaf in sample.leaves:
            paths.setdefault(leaf.path, []).append((sample.index, of(leaf)))
    for path, values in paths.items():
        if (odd := Deviation.among(path, values)) is not None:
            found.append(odd)
    return found


def structure_deviation(survey: Survey) -> Deviation | None:
    """Return the first sample whose containers are not those of most samples."""
    return Deviation.among("", [(sample.index, sample.structure) for sample in survey.samples])


def flagged(survey: Survey, is_bad: Callable[[Leaf], bool]) -> list[tuple[Sample, Leaf]]:
    """Return every sample and leaf for which a predicate holds."""
    return [(sample, leaf) for sample in survey.samples for leaf in sample.leaves if is_bad(leaf)]


def identical_inputs(survey: Survey) -> bool:
    """Say whether every sample has the same input, tensor for tensor."""
    if len(survey.samples) < 4:
        return False
    digests = set()
    for sample in survey.samples:
        data = [leaf for leaf in sample.inputs if leaf.kind in ("tensor", "array")]
        if not data and any(leaf.kind == "text" for leaf in sample.inputs):
            data = list(sample.inputs)  # token ids may stand beside a name that is the same for all
        if not data or any(leaf.digest is None for leaf in data):
            return False
        digests.add(tuple(leaf.digest for leaf in data))
    return len(digests) == 1


def leaf_rows(survey: Survey) -> list[dict[str, Any]]:
    """Return a row for every leaf of the samples: dtype, shape, range, mean and deviation over all that were read."""
    paths: dict[str, list[Leaf]] = {}
    for sample in survey.samples:
        for leaf in sample.leaves:
            paths.setdefault(leaf.path, []).append(leaf)
    rows = []
    for path, found in paths.items():
        means = [
            (one.mean, one.std) for one in found if one.mean is not None and one.std is not None
        ]
        mean = sum(m for m, _ in means) / len(means) if means else None
        spread = (
            math.sqrt(max(sum(s * s + m * m for m, s in means) / len(means) - mean * mean, 0.0))
            if mean is not None
            else None
        )
        shapes = {one.shape for one in found}
        rows.append(
            {
                "leaf": path or "sample",
                "type": "/".join(sorted({one.type for one in found})),
                "dtype": "/".join(sorted({one.dtype for one in found})),
                "shape": list(shapes.pop()) if len(shapes) == 1 else f"{len(shapes)} shapes",
                "low": min((one.low for one in found if one.low is not None), default=None),
                "high": max((one.high for one in found if one.high is not None), default=None),
                "mean": mean,
                "std": spread,
                "nan or inf": sum(one.nan + one.inf for one in found),
            }
        )
    return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class CollateError:
    """A batch that could not be made of samples that could be read.

    Attributes:
        indices: Of the samples.
        type, message: Of the exception.
        location: The user's innermost line, where the collate function is the user's.
    """

    indices: tuple[int, ...]
    type: str
    message: str
    location: Location | None


def try_collate(survey: Survey) -> CollateError | None:
    """Collate one real batch of the samples read, those that differ among them.

    The dataset is read again under the survey's seed, and put back.
    """
    part = survey.part
    chosen = _unlike_samples(survey, part.plan.batch_size or 2)
    snapshot = Snapshot(Contents(part.dataset, chosen))
    with isolated():
        try:
            samples = [read(part.dataset, index, survey.seed + index) for index in chosen]
            part.plan.collate(samples)
        except Exception as error:  # the user's collate function may raise anything
            lines = message_of(error).strip().splitlines()
            return CollateError(
                indices=chosen,
                type=type(error).__name__,
                message=lines[0] if lines else "",
                location=sources.of_error(error),
            )
        finally:
            snapshot.restore()
    return None


def _unlike_samples(survey: Survey, size: int) -> tuple[int, ...]:
    """Choose a batch's worth of indices so that different shapes and dtypes meet."""
    seen: dict[Any, int] = {}
    for sample in survey.samples:
        key = tuple((leaf.path, leaf.shape, leaf.dtype, leaf.kind) for leaf in sample.leaves)
        seen.setdefault(key, sample.index)
    first = list(seen.values())[:size]
    rest = [sample.index for sample in survey.samples if sample.index not in first]
    return tuple(sorted([*first, *rest[: max(size - len(first), 0)]]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a bad value comes from.

    Attributes:
        line: The user's line after which it is there, or that returns it.
        held: The stored array that holds it already, or None.
        computed: The operation of torch's that computes it from finite numbers, as a clause; empty where none is known to.
    """

    line: Location | None
    held: Held | None = field(default=None, repr=False)
    computed: str = ""


def find_value(part: Part, index: int, seed: int, is_bad: Callable[[Leaf], bool]) -> Origin:
    """Find the stored array, or the first line of the reading, that has a bad value."""
    contents = Contents(part.dataset, (index,))
    snapshot = Snapshot(contents)
    stored = None
    for held in contents.arrays:
        row = held.value
        if len(row.shape) and len(row) == part.length:
            row = row[index]
        if is_bad(describe_leaf("", row)):
            stored = held
            break

    def watcher(frame: FrameType, event: str, line: int) -> bool:
        return event != "call" and any(
            (is_array(value) or isinstance(value, float)) and is_bad(describe_leaf("", value))
            for value in frame.f_locals.values()
        )

    with isolated():
        try:
            line = find_line(lambda: read(part.dataset, index, seed), watcher)
            snapshot.restore()
            made = (
                find_nonfinite(lambda: read(part.dataset, index, seed)) if stored is None else None
            )
        finally:
            snapshot.restore()
    if made is not None and made.origin == "computed" and made.location is not None:
        return Origin(line=made.location, computed=f"{made.op.name}: {made.fact}")
    return Origin(line=line or return_line(part, index, seed), held=stored)


def label_map_line(part: Part, index: int, wrong: Callable[[Any], Any]) -> Location | None:
    """Return the first line of a reading after which a label map holds a wrong label, or None.

    Args:
        part: Whose sample.
        index: Of a sample whose labels are an array.
        wrong: Says of an array where it is wrong.

    A local array counts that has as many dimensions longer than one as the label; images have one more.
    """
    snapshot = Snapshot(Contents(part.dataset, (index,)))

    def sizes(value: Any) -> int:
        return sum(size > 1 for size in value.shape)

    with isolated():
        try:
            sample = read(part.dataset, index, index)
            target = target_path(sample)
            label = next((v for p, v in leaves(sample) if target is not None and p == target), None)
            if not is_array(label) or sizes(label) < 2 or not bool(wrong(label).any()):
                return None
            dims = sizes(label)

            def watcher(frame: FrameType, event: str, line: int) -> bool:
                return event != "call" and any(
                    is_array(value) and sizes(value) == dims and bool(wrong(value).any())
                    for value in frame.f_locals.values()
                )

            snapshot.restore()
            return find_line(lambda: read(part.dataset, index, index), watcher)
        finally:
            snapshot.restore()


def unlike_line(part: Part, usual: int, odd: int, seed: int) -> Location | None:
    """Return the first line of reading a sample after which an array has another number of dimensions than in a usual sample.

    Args:
        part: The dataset.
        usual: Index of a sample like most.
        odd: Index of the other one.
        seed: Sample ``i`` is read after ``seed_process(seed + i)``.
    """
    snapshot = Snapshot(Contents(part.dataset, (usual, odd)))
    ranks: dict[tuple[Any, str], set[int]] = {}

    def arrays(frame: FrameType) -> Iterator[tuple[tuple[Any, str], int]]:
        for name, value in frame.f_locals.items():
            if is_array(value):
                yield (frame.f_code, name), len(value.shape)

    def recorder(frame: FrameType, event: str, line: int) -> bool:
        for key, rank in arrays(frame):
            ranks.setdefault(key, set()).add(rank)
        return False

    def watcher(frame: FrameType, event: str, line: int) -> bool:
        return event != "call" and any(
            key in ranks and rank not in ranks[key] for key, rank in arrays(frame)
        )

    with isolated():
        try:
            find_line(lambda: read(part.dataset, usual, seed + usual), recorder)
            snapshot.restore()
            return find_line(lambda: read(part.dataset, odd, seed + odd), watcher)
        finally:
            snapshot.restore()


_HEADING = re.compile(r"(?:if|elif|else|while|for|with|try|match|case)\b")


def own_line(part: Part, odd: Deviation, seed: int) -> Location | None:
    """Return the line that reading the odd samples runs, and reading the usual ones does not; None for a stream.

    Of several the last one in the function that ends first: what it leaves is what the sample has.

    Args:
        part: The dataset.
        odd: Which samples are unlike most.
        seed: Sample ``i`` is read after ``seed_process(seed + i)``.
    """
    if not part.is_map_style:
        return None
    snapshot = Snapshot(Contents(part.dataset, (*odd.odd, *odd.alike)))

    def lines(index: int) -> dict[tuple[CodeType, int], None]:
        ran: dict[tuple[CodeType, int], None] = {}

        def watcher(frame: FrameType, event: str, line: int) -> bool:
            if event != "call":
                ran.setdefault((frame.f_code, line))
            return False

        snapshot.restore()
        find_line(lambda: read(part.dataset, index, seed + index), watcher)
        return ran

    with isolated():
        try:
            theirs = {line for index in odd.alike for line in lines(index)}
            ran = [lines(index) for index in odd.odd]
        finally:
            snapshot.restore()
    own = [key for key in ran[0] if key not in theirs and all(key in other for other in ran[1:])]
    places = [line_of(code, line) for code, line in own if code is own[0][0]]
    statements = [place for place in places if not _HEADING.match(place.text)]
    return next(reversed(statements or places), None)


def length_line(part: Part) -> Location | None:
    """Return the line by which the dataset's ``__len__`` answers."""

    def watcher(frame: FrameType, event: str, line: int) -> bool:
        return event == "return" and frame.f_code.co_name == "__len__"

    return find_line(lambda: len(part.dataset), watcher)


def label_line(
    part: Part, index: int, wrong: Callable[[float], bool], seed: int = 0
) -> Location | None:
    """Return the line that gave a number which ``__getitem__`` returns its last value, or None.

    Args:
        part: Whose sample.
        index: Of a sample with a wrong label.
        wrong: Whether a number is a wrong label.
        seed: For the reading.
    """
    given: dict[str, tuple[float, Location]] = {}
    found: list[Location] = []

    def watcher(frame: FrameType, event: str, line: int) -> bool:
        if event == "call" or frame.f_code.co_name not in ("__getitem__", "__iter__", "__next__"):
            return False
        for name, value in frame.f_locals.items():
            number = number_of(value)
            if number is not None and (name not in given or given[name][0] != number):
                given[name] = (number, line_of(frame.f_code, line))
        text = line_of(frame.f_code, line).text
        if event == "return":
            found[:] = [
                place
                for name, (number, place) in given.items()
                if wrong(number) and re.search(rf"\b{name}\b", text) and place.line != line
            ]
        return False

    snapshot = Snapshot(Contents(part.dataset, (index,)))
    with isolated():
        try:
            find_line(lambda: read(part.dataset, index, seed), watcher)
        finally:
            snapshot.restore()
    return found[0] if found else None


def number_of(value: Any) -> float | None:
    """Return a number, or the one element of an array, as a float; None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value)
    if is_array(value) and len(value.reshape(-1)) == 1:
        return float(value)
    return None


def return_line(part: Part, index: int, seed: int = 0) -> Location | None:
    """Return the line by which ``__getitem__`` returns this sample."""
    snapshot = Snapshot(Contents(part.dataset, (index,)))
    depth: dict[FrameType, bool] = {}

    def watcher(frame: FrameType, event: str, line: int) -> bool:
        if event == "call":
            depth[frame] = frame.f_code.co_name in ("__getitem__", "__iter__", "__next__")
            return False
        return event == "return" and depth.get(frame, False)

    with isolated():
        try:
            found = find_line(lambda: read(part.dataset, index, seed), watcher)
        finally:
            snapshot.restore()
    return found or part.class_line


def try_last_batch(
    part: Part, model: torch.nn.Module, indices: list[int], seed: int
) -> CollateError | None:
    """Run a model in training mode on a batch as small as the loader's last one.

    Args:
        part: Whose samples; the target, by convention the last element, is left out.
        model: Put back by the caller.
        indices: Of the last batch.
        seed: In force while reading.

    Returns:
        What the model raised, or None.
    """
    snapshot = Snapshot(Contents(part.dataset, tuple(indices)))
    try:
        batch = part.plan.collate([read(part.dataset, index, seed) for index in indices])
    finally:
        snapshot.restore()
    inputs = batch[:-1] if isinstance(batch, list | tuple) and len(batch) > 1 else (batch,)
    model.train()
    try:
        model(*inputs)
    except Exception as error:  # the user's collate function may raise anything
        lines = message_of(error).strip().splitlines()
        return CollateError(
            indices=tuple(indices), type=type(error).__name__, message=lines[0] if lines else "",
            location=sources.of_error(error),
        )  # fmt: skip
    return None
