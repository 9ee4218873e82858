"""Do workers and epochs draw different augmentations, and does the seed repeat them?

Workers are simulated in this process: everything the dataset holds is put back as a new worker would
receive it, the process is seeded as torch seeds a worker, ``worker_init_fn`` runs, and the same items
are read. A generator that stands in the same state in two workers, and is drawn from, is duplicated:
that holds for every item, whatever it looks like.
"""

from __future__ import annotations

import contextlib
import functools
import random
import sys
from typing import TYPE_CHECKING, Any

import torch

from .. import sources
from ..lean import dataclass
from ..record.tracing import Given, find_line, locals_by_line, unlike
from .generators import fingerprint, global_generators, is_generator
from .simulation import WorkerRun, Workers
from .wording import called

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from ..findings import Location
    from .plan import Part


@dataclass(frozen=True, slots=True, kw_only=True)
class Duplicate:
    """A generator that gives the same draws where they should differ.

    Attributes:
        name: ``np.random``, ``random``, ``torch``, or the path of the dataset's own generator.
        between: ``workers`` or ``epochs``.
        drawn: The user's line that draws from it.
        made: The line that makes it, or that seeds it in ``worker_init_fn``.
        seeded_by: Name of the function that puts it in this state, where it is not the dataset's own.
    """

    name: str
    between: str
    drawn: Location | None
    made: Location | None
    seeded_by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Augmentation:
    """Evidence on the randomness of a dataset's items.

    Attributes:
        items: How many items each worker read, twice.
        workers: How many workers were simulated; 0 where the loader reads in the main process.
        random: Whether items differ between reads, or between epochs.
        kept: Whether items are random at the first reading alone: nothing is drawn at the second
            one, which is equal.
        repeats: Whether the same worker with the same seed reads the same again.
        duplicates: Generators in the same state in different workers or epochs.
        used: Generators drawn from.
        comparable: False where no item has a digest.
    """

    items: int
    workers: int
    random: bool
    kept: bool
    repeats: bool
    duplicates: tuple[Duplicate, ...]
    used: tuple[str, ...]
    comparable: bool


def measure(part: Part) -> Augmentation:
    """Simulate two workers and two epochs. Cost: five times ``2 * ITEMS`` reads.

    Raises:
        Exception: Whatever reading, or ``worker_init_fn``, raises.
    """
    workers = Workers(part)
    first, again = workers.run(0), workers.run(0)
    second, later = workers.run(1), workers.run(0, epoch=1)
    uses_workers = workers.declared > 0 or not part.plan.declared
    used = first.used | second.used
    duplicates: list[Duplicate] = []
    if uses_workers and (workers.declared != 1):
        duplicates += [
            _explain(workers, name, "workers", first) for name in _same(workers, first, second)
        ]
    if uses_workers and not part.plan.persistent_workers:
        known = {duplicate.name for duplicate in duplicates}
        duplicates += [
            _explain(workers, name, "epochs", first)
            for name in _same(workers, first, later)
            if name not in known
        ]
    return Augmentation(
        items=len(workers.indices),
        workers=workers.count if uses_workers else 0,
        random=first.varies or first.digests != later.digests,
        kept=not first.varies and bool(first.used) and not first.used_again,
        repeats=first.digests == again.digests,
        duplicates=tuple(duplicates),
        used=tuple(sorted(used)),
        comparable=any(digest is not None for digest in first.digests),
    )


def _same(workers: Workers, one: WorkerRun, other: WorkerRun) -> list[str]:
    """Name the generators that start equal in both runs and decide what the items look like.

    One that is seeded anew for every item starts anywhere: advancing it changes nothing.
    """
    return [
        name
        for name in sorted(one.used | other.used)
        if one.start.get(name) == other.start.get(name)
        and workers.run(0, advance=name).digests != one.digests
    ]


def _explain(workers: Workers, name: str, between: str, run: WorkerRun) -> Duplicate:
    held = next((held for one, _, held in workers.generators() if one == name), None)
    drawn: list[Location | None] = []

    def watch(call: Callable[[], None]) -> None:
        generator = next(generator for one, generator, _ in workers.generators() if one == name)
        drawn.append(
            find_line(
                call,
                lambda frame, event, line: (
                    event != "call" and fingerprint(generator) != run.start[name]
                ),
            )
        )

    workers.run(0, watch=watch)
    made, by = (held.location if held is not None else None), ""
    init = workers.part.plan.worker_init_fn
    if held is None and init is not None:
        made, by = (
            _seeding_line(workers, name, init),
            called(init),
        )
    return Duplicate(name=name, between=between, drawn=drawn[0], made=made, seeded_by=by)


def _seeding_line(workers: Workers, name: str, init: Callable[[int], None]) -> Location | None:
    """Find the line of ``worker_init_fn`` that sets a generator of the process."""
    generator = global_generators()[name]
    with workers.ready(0, init=False):
        before = fingerprint(generator)
        return find_line(
            lambda: init(0),
            lambda frame, event, line: event != "call" and fingerprint(generator) != before,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reseeding:
    """A line of the reading that fixes the randomness anew for every item.

    Attributes:
        call: What it does: ``np.random.seed(0)`` or ``makes a generator with a fixed seed``.
        location: Where.
    """

    call: str
    location: Location | None


def find_reseeding(part: Part) -> Reseeding | None:
    """Find what makes every reading of an item draw the same: a seed set, or a generator made, in it."""
    workers = Workers(part)
    index = workers.indices[0]
    with workers.ready(0):
        calls = _recorded_seeds(lambda: part.dataset[index])
    if calls:
        return calls[0]
    made: list[tuple[str, bytes]] = []
    found: list[Location | None] = []

    def watcher(frame: FrameType, event: str, line: int) -> bool:
        for name, value in frame.f_locals.items():
            if event != "call" and is_generator(value) and id(value) not in known:
                made.append((name, fingerprint(value)))
                return True
        return False

    for epoch in (0, 1):
        with workers.ready(0, epoch):
            known = {id(generator) for _, generator, _ in workers.generators()}
            found.append(find_line(lambda: part.dataset[index], watcher))
    if found[0] is not None and len(made) == 2 and made[0] == made[1]:
        return Reseeding(call=f"{made[0][0]} is created with the same seed", location=found[0])
    return None


def _recorded_seeds(call: Callable[[], Any]) -> list[Reseeding]:
    """Run a call and record who seeds a generator of the process."""
    found: list[Reseeding] = []
    numpy = sys.modules.get("numpy")
    targets: list[tuple[Any, str, str]] = [
        (random, "seed", "random.seed"),
        (torch, "manual_seed", "torch.manual_seed"),
    ]
    if numpy is not None:
        targets.append((numpy.random, "seed", "np.random.seed"))
    with contextlib.ExitStack() as stack:
        for owner, attribute, name in targets:
            original = getattr(owner, attribute)
            stack.callback(setattr, owner, attribute, original)
            setattr(owner, attribute, _recorder(original, name, found))
        call()
    return found


def _recorder(
    original: Callable[..., Any], name: str, found: list[Reseeding]
) -> Callable[..., Any]:
    def seed(*args: Any, **kwargs: Any) -> Any:
        values = ", ".join(
            [*map(repr, args), *(f"{key}={value!r}" for key, value in kwargs.items())]
        )
        found.append(Reseeding(call=f"{name}({values[:40]})", location=sources.of_frame(skip=1)))
        return original(*args, **kwargs)

    return seed


def find_divergence(part: Part) -> tuple[str, Location | None]:
    """Find the first local value that differs between two equal workers: randomness that no seed reaches.

    Returns:
        The local's name and the line that makes it; an empty name where none is found.
    """
    workers = Workers(part)
    return unlike(_reading(workers), _reading(workers))


def _reading(workers: Workers) -> list[Given]:
    """Read every item once and list each local as it gets a new value."""
    read = workers.part.dataset.__getitem__
    with workers.ready(0):
        return locals_by_line(functools.partial(read, index) for index in workers.indices)
