"""Count the bytes of live tensors between the steps."""

from __future__ import annotations

import contextlib
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...record.modes import KernelObserver
from ..memory.allocations import storages

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


_MAKES: dict[Any, bool] = {}
"""By operator: whether what it returns may have a storage that was not there before."""


def _makes_storages(func: Any) -> bool:
    """Say whether an operator returns more than views of its arguments and arguments of unchanged size."""
    schema = getattr(func, "_schema", None)
    if schema is None or func.namespace != "aten" or not schema.returns:
        return True
    name = schema.name.removeprefix("aten::")
    # the first change the size of a storage, or the storage; lift gives what Python made, unseen
    if name.startswith(("resize", "set_", "lift")) or any(a.is_out for a in schema.arguments):
        return True
    if torch._C._dispatch_has_kernel_for_dispatch_key(schema.name + _overload(schema), _COMPOSITE):
        return True  # such as reshape, which copies where it must
    return any(value.alias_info is None for value in schema.returns)


_COMPOSITE = "CompositeImplicitAutograd"


def _overload(schema: Any) -> str:
    return f".{schema.overload_name}" if schema.overload_name else ""


class LiveBytes(KernelObserver):
    """Count the bytes of the storages that operations made and that still live; nothing else.

    Attributes:
        live: The count now, of all devices.
        made: Storages seen so far, alive or not.
    """

    def __init__(self) -> None:
        self.live = 0
        self.made = 0
        self._known: dict[int, _Counted] = {}

    def around(
        self, func: Any, kinds: Iterable[type], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run one kernel, and count the storages that it made."""
        for kind in kinds:
            if hasattr(kind, "__tensor_flatten__"):
                return NotImplemented
        out = func(*args, **kwargs)
        makes = _MAKES.get(func)
        if makes is None:
            makes = _MAKES[func] = _makes_storages(func)
        if makes:
            self._see(out)
        return out

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Count nothing inside a block that is known to leave nothing behind."""
        self.__exit__(None, None, None)
        try:
            yield
        finally:
            self.__enter__()

    def know(self, tensors: Iterable[Tensor]) -> None:
        """Count storages that were there before, so that a view of one is no new one."""
        for tensor in tensors:
            self._see(tensor)

    def beyond(self, known: Iterable[Any]) -> int:
        """Return the count now without these storages."""
        own = {storage._cdata for storage in known} & self._known.keys()
        return self.live - sum(self._known[address].size for address in own)

    def _see(self, out: Any) -> None:
        if isinstance(out, Tensor):
            for storage in storages(out):
                known = self._known.get(storage._cdata)
                size = storage.nbytes()
                if known is None:
                    reference = _Counted(storage, self._forget)
                    reference.address, reference.size = storage._cdata, size
                    self._known[storage._cdata] = reference
                    self.live += size
                    self.made += 1
                elif known.size != size:
                    self.live += size - known.size
                    known.size = size
        elif isinstance(out, list | tuple):
            for value in out:
                self._see(value)

    def _forget(self, reference: weakref.ref[Any]) -> None:
        assert isinstance(reference, _Counted)
        self._known.pop(reference.address, None)
        self.live -= reference.size


class _Counted(weakref.ref[Any]):
    __slots__ = ("address", "size")
    address: int
    size: int
