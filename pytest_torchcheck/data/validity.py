"""Read samples of a dataset under a seed, and say what is wrong with them: errors, NaN, shapes, dtypes, batches."""

from __future__ import annotations

import math
import time
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Any

from .. import deadline, sources
from ..lean import dataclass
from ..objects import trees
from ..state import isolated, seed_process
from ..text.printable import message_of
from .contents import Contents
from .describing import Sample, describe_sample
from .plan import indices, kept_samplers, number_of
from .snapshot import Snapshot, put_back

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..findings import Location
    from .plan import Part

_BATCHES = 256
"""How many batches of a sampler are drawn to find the one with the most unlike samples."""

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from ..findings import Location
    from .describing import Leaf
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


def holds_nan(inputs: Any) -> bool:
    """Say whether inputs that a model is given hold NaN, as a mark of missing values does."""
    floats = trees.floats(inputs).values()
    return any(bool(tensor.isnan().any()) for tensor in floats if trees.computable(tensor))


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
    chosen = _put_together(survey) or _unlike_samples(survey, part.plan.batch_size or 2)
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


def _put_together(survey: Survey) -> tuple[int, ...]:
    """Return the batch with the most unlike samples among the first that the user's own sampler makes.

    Empty where the order is torch's own: any samples may then meet. A sampler that puts samples of one size
    together must not be judged by batches that it never makes.
    """
    part = survey.part
    if part.plan.batch_sampler is None and part.plan.sampler is None:
        return ()
    known = {sample.index: _form(sample) for sample in survey.samples}
    with isolated(), kept_samplers(part):
        seed_process(survey.seed)
        drawn = [tuple(map(number_of, batch)) for batch in islice(indices(part), _BATCHES)]
    drawn = [batch for batch in drawn if all(0 <= index < part.length for index in batch)]
    return max(drawn, key=lambda batch: len({known.get(index) for index in batch}), default=())


def _form(sample: Sample) -> Any:
    """Return what decides whether a sample stacks with another."""
    return tuple((leaf.path, leaf.shape, leaf.dtype, leaf.kind) for leaf in sample.leaves)


def _unlike_samples(survey: Survey, size: int) -> tuple[int, ...]:
    """Choose a batch's worth of indices so that different shapes and dtypes meet."""
    seen: dict[Any, int] = {}
    for sample in survey.samples:
        seen.setdefault(_form(sample), sample.index)
    first = list(seen.values())[:size]
    rest = [sample.index for sample in survey.samples if sample.index not in first]
    return tuple(sorted([*first, *rest[: max(size - len(first), 0)]]))


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
    if (home := next((p.device for p in model.parameters()), None)) is not None:
        inputs = trees.substitute(
            inputs, {id(t): t.to(home) for t in trees.tensors(inputs).values()}
        )
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


MOST_SAMPLES = 256
"""How many samples of a dataset are read, evenly spread, the first and the last among them."""


def spread(count: int, most: int = MOST_SAMPLES) -> tuple[int, ...]:
    """Return up to ``most`` indices of ``range(count)``, evenly spread, with both ends."""
    if count <= most:
        return tuple(range(count))
    return tuple(dict.fromkeys(round(i * (count - 1) / (most - 1)) for i in range(most)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadError:
    """Reading a sample raised.

    Attributes:
        index: Which one.
        type, message: Of the exception.
        location: The user's innermost line.
    """

    index: int
    type: str
    message: str
    location: Location | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """The samples that were read of one dataset.

    Attributes:
        part: Of which.
        count: How many samples the dataset says it has; None for an iterable one.
        samples: Those that could be read.
        errors: Those that could not, at most 8.
        seed: Sample ``i`` was read after ``seed_process(seed + i)``.
        seconds: How long the reading took, in this process.
        used_up: Whether a stream that ended gives no sample when it is iterated over again.
    """

    part: Part
    count: int | None
    samples: tuple[Sample, ...]
    errors: tuple[ReadError, ...]
    seed: int
    seconds: float = 0.0
    used_up: bool = False

    @property
    def read(self) -> str:
        """How many of how many, in words."""
        of = "" if self.count is None else f" of {self.count}"
        return f"{len(self.samples)}{of} samples"


def read(dataset: Any, index: int, seed: int) -> Any:
    """Read one item after seeding the process."""
    deadline.keep()
    seed_process(seed)
    return dataset[index]


def survey(part: Part, *, seed: int = 0, most: int = MOST_SAMPLES) -> Survey:
    """Read up to ``most`` samples once and describe them; the dataset is put back afterwards.

    Cost: as many reads, each hashed once.
    """
    samples: list[Sample] = []
    errors: list[ReadError] = []
    count = part.length if part.is_map_style else None
    places = spread(count, most) if count is not None else ()
    seconds = 0.0
    with put_back(part.dataset, places):
        began = time.perf_counter()
        for index, sample in _read_all(part, places, seed, most, errors):
            seconds += time.perf_counter() - began
            samples.append(describe_sample(index, sample))
            began = time.perf_counter()
        ended = count is None and not errors and 0 < len(samples) < most
        used_up = ended and not _begins_again(part.dataset, seed)
    return Survey(
        part=part,
        count=count,
        samples=tuple(samples),
        errors=tuple(errors),
        seed=seed,
        seconds=seconds,
        used_up=used_up,
    )


def _begins_again(dataset: Any, seed: int) -> bool:
    """Say whether a stream gives a sample when it is iterated over once more, or an error that tells of it."""
    seed_process(seed)
    try:
        return any(True for _ in islice(iter(dataset), 1))
    except Exception:  # the user's dataset may raise anything: it is not empty
        return True


def _read_all(
    part: Part, places: tuple[int, ...], seed: int, most: int, errors: list[ReadError]
) -> Iterator[tuple[int, Any]]:
    if not part.is_map_style:
        seed_process(seed)
        index = -1
        try:
            for index, sample in enumerate(islice(iter(part.dataset), most)):
                yield index, sample
        except Exception as error:  # the user's dataset may raise anything
            errors.append(_read_error(index + 1, error))
        return
    for index in places:
        try:
            sample = read(part.dataset, index, seed + index)
        except Exception as error:  # the user's dataset may raise anything
            errors.append(_read_error(index, error))
            if len(errors) >= 8:
                return
            continue
        yield index, sample


def _read_error(index: int, error: Exception) -> ReadError:
    message = message_of(error).strip().splitlines()
    return ReadError(
        index=index,
        type=type(error).__name__,
        message=message[0] if message else "",
        location=sources.of_error(error),
    )
