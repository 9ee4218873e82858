"""The log of storages: which are live, and whose bytes changed when."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .allocations import Allocation, OutOfBudget, Phase, Site, StorageRef, room

if TYPE_CHECKING:
    import weakref

    from torch import Tensor


class StorageLog:
    """Births, sizes and deaths of storages, in order.

    Args:
        budget: Raise :class:`OutOfBudget` as soon as more bytes than these would be live.

    Attributes:
        before: What was there at the start, each with its bytes.
        log: Whose bytes changed by how much, in order.
        live: What is live now, by the address of its storage.
        live_bytes: Bytes live now.
        failed_at: Place in the log at which the first operation raised, or None.
    """

    def __init__(self, budget: int | None) -> None:
        self.budget = budget
        self.before: list[tuple[Allocation, int]] = []
        self.log: list[tuple[Allocation, int]] = []
        self.live: dict[int, StorageRef] = {}
        self.live_bytes = 0
        self.failed_at: int | None = None

    def add(
        self, tensor: Tensor, storage: Any, op: str, phase: Phase, module: str, site: Site | None
    ) -> Allocation:
        """Log the birth of a storage.

        Raises:
            OutOfBudget: More bytes are live than the budget allows.
        """
        size = room(tensor, storage)
        allocation = Allocation(tensor, size, len(self.log), op, phase, module, site)
        self.watch(storage, allocation)
        self.log.append((allocation, size))
        if self.budget is not None and self.live_bytes > self.budget:
            self.failed_at = len(self.log)
            raise OutOfBudget(
                f"simulated out of memory: {op or 'the step'} takes {size} bytes, which makes"
                f" {self.live_bytes} live bytes where {self.budget} are allowed"
            )
        return allocation

    def watch(self, storage: Any, allocation: Allocation) -> None:
        """Count a storage as live until it dies."""
        reference = StorageRef(storage, self._forget)
        reference.allocation = allocation
        reference.address = storage._cdata
        self.live[reference.address] = reference
        self.live_bytes += allocation.size

    def _forget(self, reference: weakref.ref[Any]) -> None:
        assert isinstance(reference, StorageRef)
        allocation = reference.allocation
        if allocation is None:
            return
        del self.live[reference.address]
        allocation.died = len(self.log)
        self.log.append((allocation, -allocation.size))
        self.live_bytes -= allocation.size

    def resize(self, allocation: Allocation, size: int) -> None:
        """Log that a storage has another size now."""
        self.log.append((allocation, size - allocation.size))
        self.live_bytes += size - allocation.size
        allocation.size = size
