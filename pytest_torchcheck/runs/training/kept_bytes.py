"""Whether training steps go on leaving bytes behind, with as few kernels counted as that takes."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ...loop.checkpoints import STEPS, is_torchs
from ...probes.holding.live_bytes import LiveBytes
from ...probes.memory.allocations import storages
from ...stepping import take_step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class KeptBytes:
    """Counts what the steps after the first leave behind.

    To count costs as much as a small kernel for each kernel. Where the first step was seen to leave
    the model as it was, the last one is counted alone: if nothing of it is left but the gradients, and
    those of the step before are gone, no step adds to what lives.

    Attributes:
        live: Live bytes after each of these steps; empty where they have to be measured.
    """

    def __init__(self) -> None:
        self.live: list[int] = []
        self._counter = LiveBytes()
        self._every = True
        self._gradients: list[StorageWeakRef] = []

    def only_last(self) -> None:
        """Count the last step alone: the first one changed nothing that the model holds."""
        self._every = False

    def _counts(self, step: int) -> bool:
        return step > 0 and (self._every or step == STEPS - 1)

    def counting(self, step: int) -> contextlib.AbstractContextManager[Any]:
        """Return a block in which a step is counted, if it is to be."""
        return self._counter if self._counts(step) else contextlib.nullcontext()

    def apply(self, step: int) -> Callable[[Any, Callable[[], torch.Tensor]], None]:
        """Return what takes the optimizer's step within that block."""
        return self._uncounted if self._counts(step) else take_step

    def look(self, step: int, trained: Iterable[torch.Tensor]) -> None:
        """Look at what a step has left.

        Args:
            step: Which one, from 0.
            trained: The tensors that may have a gradient now.
        """
        if not step:
            return
        if self._every:
            self.live.append(self._counter.live)
            return
        found = [s for t in trained if t.grad is not None for s in storages(t.grad)]
        if step == STEPS - 1:
            gone = all(one.expired() for one in self._gradients)
            self.live = [] if self._counter.beyond(found) or not gone else [0] * step
        else:
            self._gradients = [StorageWeakRef(storage) for storage in found]

    def _uncounted(self, optimizer: Any, closure: Callable[[], torch.Tensor]) -> None:
        """Take an optimizer's step, and do not count those of torch's own: they add nothing after the first.

        They call many small kernels for each parameter, and the count costs more than these.
        """
        known = is_torchs(optimizer) and not isinstance(optimizer, torch.optim.LBFGS)
        with self._counter.paused() if known else contextlib.nullcontext():
            take_step(optimizer, closure)
