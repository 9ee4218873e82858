"""Simulate the workers of a loader in this process: what they receive, how they are seeded, what they read."""

from __future__ import annotations

import contextlib
import random
import sys
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data._utils import worker as torch_worker

from ..lean import dataclass
from ..objects.peek import attribute
from ..state import isolated
from .contents import Contents, Held
from .describing import describe_sample
from .generators import fingerprint, global_generators
from .plan import accepts
from .snapshot import Snapshot
from .validity import spread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .plan import Part

ITEMS = 8
_BASE_SEEDS = (0x5EED0, 0x5EED1)  # what two epochs draw
_COUNTED = "epoch"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRun:
    """What one simulated worker did.

    Attributes:
        start: Fingerprint of every generator once the worker was ready.
        used: Generators whose state had changed after the items were read.
        used_again: Those of them that the second reading of the items drew from.
        digests: Of the items read, in order; the second half reads the same items again.
    """

    start: dict[str, bytes]
    used: frozenset[str]
    used_again: frozenset[str]
    digests: tuple[str | None, ...]

    @property
    def varies(self) -> bool:
        """Say whether reading an item again gave something else."""
        half = len(self.digests) // 2
        return self.digests[:half] != self.digests[half:]


class Workers:
    """Simulates the workers of a part's loader; puts the dataset and the process back after each.

    Args:
        part: The dataset and how it is read.
    """

    def __init__(self, part: Part) -> None:
        self.part = part
        self.indices = spread(part.length, ITEMS) if part.is_map_style else ()
        self.declared = part.plan.num_workers
        self.count = self.declared if self.declared > 1 else 2
        self._contents = Contents(part.dataset, self.indices)
        self.snapshot = Snapshot(self._contents)

    def run(
        self,
        worker: int,
        epoch: int = 0,
        *,
        advance: str | None = None,
        watch: Callable[[Callable[[], None]], None] | None = None,
    ) -> WorkerRun:
        """Simulate one worker of one epoch reading every item twice.

        Args:
            worker: Its number.
            epoch: Which base seed it starts from.
            advance: Name of a generator that is drawn from once before.
            watch: Calls the reading itself, to look at it line by line.
        """
        digests: list[str | None] = []

        middle: dict[str, bytes] = {}

        def read_all() -> None:
            digests.extend(self.digests())
            middle.update(self.states())
            digests.extend(self.digests())

        with self.ready(worker, epoch):
            for name, generator, _ in self.generators():
                if name == advance:
                    _draw(generator)
            start = self.states()
            (watch or (lambda call: call()))(read_all)
            end = self.states()
        used = frozenset(name for name, state in end.items() if start.get(name) != state)
        again = frozenset(name for name, state in end.items() if middle.get(name) != state)
        return WorkerRun(start=start, used=used, used_again=again, digests=tuple(digests))

    def digests(self) -> list[str | None]:
        """Read every item once, in a worker that is ready."""
        return [describe_sample(i, self.part.dataset[i]).digest for i in self.indices]

    @contextlib.contextmanager
    def ready(self, worker: int, epoch: int = 0, *, init: bool = True) -> Iterator[None]:
        """Enter a simulated worker: what :func:`torch.utils.data._utils.worker._worker_loop` does first."""
        base = _BASE_SEEDS[epoch]
        with isolated():
            before = torch_worker._worker_info
            try:
                seed_worker(base, worker)
                torch_worker._worker_info = torch_worker.WorkerInfo(
                    id=worker, num_workers=self.count, seed=base + worker, dataset=self.part.dataset
                )
                if init and self.part.plan.worker_init_fn is not None:
                    self.part.plan.worker_init_fn(worker)
                self.begin(epoch)
                yield
            finally:
                torch_worker._worker_info = before
                self.snapshot.restore()

    def begin(self, epoch: int) -> None:
        """Tell the dataset of an epoch, where it wants to know."""
        for one in {id(x): x for x in (self.part.dataset, self.part.own)}.values():
            told = attribute(one, "set_epoch")
            if callable(told) and accepts(told, 1):
                told(epoch)
            elif (
                type(count := vars(one).get(_COUNTED) if hasattr(one, "__dict__") else None) is int
            ):
                setattr(one, _COUNTED, count + epoch)  # the training loop counts it up

    def states(self) -> dict[str, bytes]:
        """Return a fingerprint of every generator of the process and of the dataset."""
        return {name: fingerprint(generator) for name, generator, _ in self.generators()}

    def generators(self) -> list[tuple[str, Any, Held | None]]:
        """Return the generators of the process and of the dataset as they are now."""
        found: list[tuple[str, Any, Held | None]] = [
            (name, generator, None) for name, generator in global_generators().items()
        ]
        known = {id(generator) for _, generator, _ in found}
        own = Contents(self.part.dataset, self.indices).generators
        return found + [
            (held.path, held.value, held) for held in own if id(held.value) not in known
        ]


def _draw(generator: Any) -> None:
    if isinstance(generator, torch.Generator):
        torch.rand(1, generator=generator)
    else:
        generator.random()


def seed_worker(base_seed: int, worker: int) -> None:
    """Seed the process as torch seeds a worker."""
    random.seed(base_seed + worker)
    torch.default_generator.manual_seed(base_seed + worker)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        generate: Callable[[int, int], list[int]] = torch_worker._generate_state
        numpy.random.seed(generate(base_seed, worker))
