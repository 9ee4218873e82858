"""Read samples of a dataset under a seed and describe them in plain numbers."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from .. import deadline, sources
from ..state import seed_process
from ..text.printable import message_of
from .describing import Sample, describe_sample
from .snapshot import put_back

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..findings import Location
    from .plan import Part

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
    """

    part: Part
    count: int | None
    samples: tuple[Sample, ...]
    errors: tuple[ReadError, ...]
    seed: int
    seconds: float = 0.0

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
    return Survey(
        part=part,
        count=count,
        samples=tuple(samples),
        errors=tuple(errors),
        seed=seed,
        seconds=seconds,
    )


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
