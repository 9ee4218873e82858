"""Tensors' memory as it was taken: which bytes, when, where, and for what."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator, Mapping
from types import CodeType, FrameType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ... import sources


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

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: torch would import its compiler at the first operation, whose frames stay in memory."""
        return False

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


Phase = Literal["forward", "loss", "backward", "optimizer"]


PHASES: tuple[Phase, ...] = ("forward", "loss", "backward", "optimizer")


Site = tuple[CodeType, int]
"""A line of source while a step runs; it becomes a Location only when it is shown."""


STOPS: set[CodeType] = set()
"""Functions that run the user's step: lines outside them are not part of it."""


_CUDA_BLOCK = (
    512  # kMinBlockSize of c10/cuda/CUDACachingAllocator.cpp; requests are rounded up to it
)


_ENGINE = torch.autograd.graph._engine_run_backward.__code__


_ranks: dict[CodeType, int] = {}


_wrappers: weakref.WeakKeyDictionary[type, bool] = weakref.WeakKeyDictionary()


class Allocation:
    """One storage: what it is and when it lived.

    Attributes:
        size: Bytes, as the device's allocator rounds them.
        shape, dtype, device: Of the first tensor seen on it.
        op: The operation that returned it; empty where it was there before.
        phase: The phase in which it was born.
        module: Qualified name of the innermost module that made it.
        site: The user's line that made it, where there is one.
        category: Parameters, buffers, ..., once known; None leaves it to the replay.
        name: Qualified name, of what has one.
        born: Place in the log; -1 for what was there at the start.
        died: Place in the log; None for what is still there at the end.
    """

    __slots__ = (
        "born", "category", "device", "died", "dtype", "module", "name", "op", "phase", "shape",
        "site", "size",
    )  # fmt: skip

    def __init__(
        self,
        tensor: Tensor,
        size: int,
        born: int,
        op: str,
        phase: Phase,
        module: str,
        site: Site | None,
    ) -> None:
        self.size = size
        self.shape = tuple(tensor.shape)
        self.dtype = tensor.dtype
        self.device = tensor.device
        self.op = op
        self.phase = phase
        self.module = module
        self.site = site
        self.category: str | None = None
        self.name = ""
        self.born = born
        self.died: int | None = None


class StorageRef(weakref.ref[Any]):
    """A weak reference to a storage that knows its allocation and its address."""

    __slots__ = ("address", "allocation")
    allocation: Allocation | None
    address: int


class OutOfBudget(torch.OutOfMemoryError):
    """The simulated out-of-memory error: live bytes would go over the tracker's budget."""


def named_tensors(values: Any, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """Iterate over the tensors of nested dicts, lists, tuples and dataclass-like objects, with names."""
    if isinstance(values, Tensor):
        yield prefix, values
    elif isinstance(values, Mapping):
        for key, value in values.items():
            yield from named_tensors(value, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(values, list | tuple):
        for place, value in enumerate(values):
            yield from named_tensors(value, f"{prefix}[{place}]" if prefix else str(place))
    elif hasattr(values, "__dict__") and not isinstance(values, type | nn.Module):
        for key, value in vars(values).items():
            if isinstance(value, Tensor | list | tuple | dict):
                yield from named_tensors(value, f"{prefix}.{key}" if prefix else key)


def is_wrapper(kind: type) -> bool:
    """Say whether a tensor is a subclass that holds others."""
    known = _wrappers.get(kind)
    if known is None:
        known = _wrappers[kind] = hasattr(kind, "__tensor_flatten__")
    return known


def storages(tensor: Tensor) -> tuple[Any, ...]:
    """Return the untyped storages of a tensor, those of its parts for sparse layouts and wrappers."""
    try:
        with torch._C.DisableTorchFunctionSubclass():  # a class may refuse torch's functions
            return (tensor.untyped_storage(),)
    except (
        NotImplementedError,
        RuntimeError,
    ):  # sparse layouts, wrapper subclasses: their parts have them
        return tuple(storage for part in _parts(tensor) for storage in storages(part))


def _parts(tensor: Tensor) -> tuple[Tensor, ...]:
    if tensor.layout is torch.sparse_coo:
        return tensor._indices(), tensor._values()
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    if is_wrapper(type(tensor)):
        names, _ = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
        return tuple(part for name in names if isinstance(part := getattr(tensor, name), Tensor))
    return ()


def room(tensor: Tensor, storage: Any) -> int:
    """Return the bytes that a storage takes: whole blocks on a GPU."""
    size: int = storage.nbytes()
    if tensor.device.type == "cuda":
        return -(-size // _CUDA_BLOCK) * _CUDA_BLOCK
    return size


def user_site() -> Site | None:
    """Return the user's innermost line between the running operation and the start of the step."""
    frame: FrameType | None = sys._getframe(1)
    fallback: Site | None = None
    while frame is not None:
        code = frame.f_code
        value = _ranks.get(code)
        if value is None:
            value = _ranks[code] = sources.rank(code.co_filename)
        if value == 2:
            return code, frame.f_lineno
        if value == 1 and fallback is None:
            fallback = code, frame.f_lineno
        if code is _ENGINE or code in STOPS:
            break
        frame = frame.f_back
    return fallback
