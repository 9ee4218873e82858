"""In which order a loader reads: repeatable under the seed, new in every epoch, and what it leaves out."""

from __future__ import annotations

from itertools import islice
from typing import Any

import torch
from torch.utils.data import (
    Dataset,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    WeightedRandomSampler,
)

from ..lean import dataclass
from ..objects.peek import attribute
from ..record.modes import Functions
from ..state import isolated, seed_process
from .describing import describe_sample
from .plan import MOST_INDICES, Part, indices, kept_samplers, number_of, sampler_of
from .simulation import Workers
from .snapshot import put_back

_DRAWS = frozenset(
    {"randperm", "rand", "randint", "randn", "multinomial", "rand_like", "bernoulli"}
)

_MANY = 8
"""Draws of an epoch from which on one index alone is no chance: of two samples, in one of 2**15 pairs of epochs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Evidence on the order of a loader's epochs.

    Attributes:
        count: Indices of one epoch that were looked at.
        repeats: Whether the same seed gives the same order.
        shuffles: Whether the order is other than ascending.
        renews: Whether the next epoch (``set_epoch`` called where there is one) has another order.
        has_set_epoch: Whether the sampler has ``set_epoch``.
        draws: Whether the next epoch called a random function of torch's.
        sampler: Class name of the sampler.
        following: Indices of the next epoch.
        alone: The only index that both epochs draw; None where there are several, or few draws.
    """

    count: int
    repeats: bool
    shuffles: bool
    renews: bool
    has_set_epoch: bool
    draws: bool
    sampler: str
    following: int = 0
    alone: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """How an epoch is cut into batches.

    Attributes:
        batches: How many batches it has.
        samples: How many samples are read.
        size: Of the batches but the last.
        last: Size of the last batch.
        drawn: How many indices the sampler gives.
    """

    batches: int
    samples: int
    size: int
    last: int
    drawn: int


def epoch_of(part: Part, *, seed: int = 0) -> Epoch:
    """Count an epoch's batches: from the arguments, or by drawing from a batch sampler of the user's own.

    Raises:
        Exception: Whatever a sampler raises.
    """
    plan = part.plan
    size = plan.batch_size
    if size is None:
        with isolated():
            seed_process(seed)
            sizes = [len(batch) for batch in islice(indices(part), MOST_INDICES)]
        last, drawn = sizes[-1] if sizes else 0, sum(sizes)
        most = max(sizes, default=0)
        return Epoch(batches=len(sizes), samples=drawn, size=most, last=last, drawn=drawn)
    count = _count(part)
    full, rest = divmod(count, size)
    if rest and not plan.drop_last:
        return Epoch(
            batches=full + 1, samples=count, size=size if full else rest, last=rest, drawn=count
        )
    last = size if full else 0
    return Epoch(batches=full, samples=full * size, size=size, last=last, drawn=count)


def _count(part: Part) -> int:
    """Return how many indices an epoch has: what the sampler says, else all of the dataset."""
    sampler: Any = part.plan.sampler
    if sampler is None and part.plan.loader is not None:
        sampler = part.plan.loader.sampler
    try:
        return len(sampler)
    except Exception:  # None, or a sampler without a length
        return part.length


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """What a sampler of torch's own was made for, where that is another number of samples.

    Attributes:
        sampler: The sampler.
        given: Name of its attribute that says what it draws from.
        length: How many samples it draws from.
        size: How many samples the loader reads from.
        certain: False where the sampler may have been given a part on purpose: a range of the first
            indices.
    """

    sampler: Any
    given: str
    length: int
    size: int
    certain: bool


_DRAWS_FROM: tuple[tuple[type[Sampler[int]], str], ...] = (
    (WeightedRandomSampler, "weights"),
    (RandomSampler, "data_source"),
    (SequentialSampler, "data_source"),
    (DistributedSampler, "dataset"),
)


def reach(part: Part) -> Reach | None:
    """Return what the sampler of a map-style dataset draws from, where it is not as long as the dataset.

    A sampler with an order of its own (``__iter__`` overridden) is not judged.
    """
    plan = part.plan
    sampler = sampler_of(part)
    if sampler is None and plan.loader is not None:
        sampler = plan.loader.sampler
    kind = next((one for one in _DRAWS_FROM if isinstance(sampler, one[0])), None)
    if kind is None or type(sampler).__iter__ is not kind[0].__iter__:
        return None
    given: Any = attribute(sampler, kind[1])
    if not hasattr(given, "__len__"):
        return None
    read: Any = plan.loader.dataset if plan.loader is not None else part.dataset
    length, size = len(given), len(read)
    if kind[1] == "weights":
        # weights of zero behind the end are never drawn
        longest = torch.as_tensor(given).nonzero()
        drawn = int(longest.max()) + 1 if len(longest) else 0
        length = drawn if length > size else length
    if length == size:
        return None
    certain = length > size or kind[1] == "weights" or isinstance(given, Dataset)
    return Reach(sampler=sampler, given=kind[1], length=length, size=size, certain=certain)


def measure(part: Part, *, seed: int = 0) -> Order:
    """Draw the indices of three epochs; the loader and its sampler are put back.

    Raises:
        Exception: Whatever a sampler raises.
    """
    sampler = sampler_of(part)
    drawn: list[str] = []

    def around(func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if (name := getattr(func, "__name__", "")) in _DRAWS:
            drawn.append(name)
        return func(*args, **kwargs)

    def epoch(number: int) -> list[list[int]]:
        if attribute(sampler, "set_epoch") is not None:
            sampler.set_epoch(number)
        return [list(map(number_of, batch)) for batch in islice(indices(part), MOST_INDICES)]

    with isolated():
        with kept_samplers(part):
            seed_process(seed)
            first = epoch(0)
            with Functions(around):
                second = epoch(1)
        with kept_samplers(part):
            seed_process(seed)
            again = epoch(0)
    flat, following = ([index for batch in epoch for index in batch] for epoch in (first, second))
    both = {*flat, *following}
    return Order(
        count=len(flat),
        repeats=first == again,
        shuffles=flat != sorted(flat),
        renews=flat != following,
        has_set_epoch=attribute(sampler, "set_epoch") is not None,
        draws=bool(drawn),
        sampler=type(sampler).__name__ if sampler is not None else "",
        following=len(following),
        alone=next(iter(both)) if len(both) == 1 and len(flat) >= _MANY else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Shards:
    """What two workers of an iterable dataset deliver.

    Attributes:
        workers: How many were simulated.
        items: How many items of each worker were compared.
        shared: How many of the first worker's items the second one delivers too.
        drawn: The same where each worker has its own seed, or None where the stream is not random.
        repeated: How many of the first worker's items are equal to another of its own.
        whole: How many items one process delivers; 0 where they were not counted, because the stream is
            random or the items of some worker do not end within the limit.
        left_out: How many of these no worker delivers.
        first: The place of the first of them.
    """

    workers: int
    items: int
    shared: int
    drawn: int | None
    repeated: int
    whole: int = 0
    left_out: int = 0
    first: int = 0


def shards(part: Part, *, most: int = 64) -> Shards:
    """Simulate two workers of an iterable dataset and compare what they deliver.

    Both draw the same random numbers, so that an augmentation cannot hide that the samples are the same.
    Where the stream is random, they are compared with their own seeds too: a stream that draws its
    samples delivers other ones in every worker.

    Where the streams are not random and those of all workers end within ``most`` samples, their samples
    together are compared with those of one process.
    """
    workers = Workers(part)

    def stream(worker: int, seed: int | None) -> list[str | None]:
        with workers.ready(worker):
            if seed is not None:
                seed_process(seed)
            return [
                describe_sample(i, item).digest
                for i, item in enumerate(islice(iter(part.dataset), most))
            ]

    first, second = stream(0, 0), stream(1, 0)
    random = first != stream(0, 1)
    known = {digest for digest in first if digest is not None}
    ends = max(len(first), len(second)) < most and not random and part.plan.num_workers > 1
    rest = [stream(worker, 0) for worker in range(2, workers.count)] if ends else []
    ends = ends and all(len(share) < most for share in rest)  # of a longer share, no end was read
    whole, lost = _left_out(part, [first, second, *rest], most) if ends else (0, [])
    return Shards(
        workers=workers.count,
        items=min(len(first), len(second)),
        shared=_shared(first, second),
        drawn=_shared(stream(0, None), stream(1, None)) if random else None,
        repeated=len(first) - len(known),
        whole=whole,
        left_out=len(lost),
        first=lost[0] if lost else 0,
    )


def _left_out(part: Part, streams: list[list[str | None]], most: int) -> tuple[int, list[int]]:
    """Return how many items one process delivers, and the places of those that no worker delivers.

    There are no such places where workers deliver something other than one process does, such as batches
    that they make themselves.

    Args:
        part: The dataset and how it is read.
        streams: Digests of all items of each worker.
        most: How many items a worker may deliver.
    """
    with isolated(), put_back(part.dataset, ()):
        seed_process(0)
        whole = [
            describe_sample(i, item).digest
            for i, item in enumerate(islice(iter(part.dataset), most * len(streams)))
        ]
    known = {digest for stream in streams for digest in stream}
    if None in known or not known <= set(whole):
        return len(whole), []
    return len(whole), [place for place, digest in enumerate(whole) if digest not in known]


def _shared(first: list[str | None], second: list[str | None]) -> int:
    known = {digest for digest in first if digest is not None}
    return sum(1 for digest in second if digest in known)
