"""Which operation saved a tensor for the backward, and which line changed it before it was read."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from ...text.printable import message_of
from ..recorded.steps import gradients_kept
from ..recorded.watch import Op, Watch, describe, name_of, storage_of, tensors_in, version_of

if TYPE_CHECKING:
    from collections.abc import Callable

_FUNCTION_FILE = os.path.join(os.path.dirname(torch.__file__), "autograd", "function.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class InplaceConflict:
    """A tensor that was saved for the backward and written before the backward read it.

    Attributes:
        saver: The operation that saved it; its ``location`` is the user's line.
        changer: The first operation that wrote it afterwards; None where no torch call did.
        tensor: Dtype and shape, such as ``float32 [8, 16]``.
        role: ``result`` or ``operand`` of the saver.
        name: Qualified name where it is a parameter or buffer, else ``""``.
        saved_version: How often it had been written when it was saved.
        found_version: How often when the backward read it.
        fact: The same as a clause.
    """

    saver: Op
    changer: Op | None
    tensor: str
    role: str
    name: str
    saved_version: int
    found_version: int
    fact: str


def find_inplace(
    run: Callable[[], object], module: nn.Module | None = None
) -> InplaceConflict | None:
    """Find the conflict behind "modified by an inplace operation".

    Args:
        run: Forward and backward, several steps if need be (the error may only come in a second
            one); where it runs no backward, one is run from what it returns.
        module: Names modules, parameters and buffers; its gradients are put back.

    Returns:
        The first conflict in the order in which the backward meets them, which is the one that
        torch raises; None where there is none, or where ``torch.func`` forbids to look. With the
        record in place torch itself does not raise, so ``run`` ends.
    """
    watch = _InplaceWatch(module)
    parameters = list(module.parameters()) if module is not None else []
    try:
        with gradients_kept(parameters), watch, saved_tensors_hooks(watch.pack, watch.unpack):
            result = list(tensors_in(run()))
            live = [t for t in result if t.requires_grad]
            if live and not watch.backward_ran:
                torch.autograd.backward(live, [torch.ones_like(t) for t in live])
        return watch.found
    except RuntimeError as error:
        if "saved tensor hooks" in message_of(error):  # torch.func takes none: nothing can be said
            return None
        raise
    finally:
        watch.writes.clear()


@dataclass(eq=False, slots=True)
class _Saved:
    """A saved tensor: an alias that shares its version counter, and how it was."""

    alias: Tensor
    version: int | None
    saver: Op
    role: str = "operand"


@dataclass(frozen=True, slots=True)
class _Write:
    before: int
    after: int
    op: Op


class _InplaceWatch(Watch):
    def __init__(self, module: nn.Module | None) -> None:
        super().__init__(module)
        self.found: InplaceConflict | None = None
        self.backward_ran = False
        self.writes: dict[int, list[_Write]] = {}
        self._running: list[tuple[Op, list[_Saved]]] = []
        self._aside: dict[int, Tensor] = {}
        self._labels: dict[int | None, str] = {}
        if module is not None:
            for name, tensor in (*module.named_parameters(), *module.named_buffers()):
                self._labels[storage_of(tensor)] = name

    def before(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Note the versions of the operands."""
        op = self.op(name_of(func))
        self._running.append((op, []))
        return op, [(t, version_of(t)) for t in tensors_in((args, kwargs))]

    def after(
        self, func: Callable[..., Any], args: Any, kwargs: Any, result: Any, token: Any
    ) -> None:
        """Note which operands were written, and whether what was saved is a result."""
        op, versions = token
        _, saved = self._running.pop()
        made = {storage_of(t) for t in tensors_in(result)}
        for record in saved:
            if storage_of(record.alias) in made:
                record.role = "result"
        if op.name == "Tensor.data":  # shares memory, but counts its writes by itself
            self._aside.update((id(t), t) for t in tensors_in(result))
        for tensor, before in versions:
            now, storage = version_of(tensor), storage_of(tensor)
            if before is None or now is None or storage is None or now == before:
                continue
            if id(tensor) not in self._aside:
                self.writes.setdefault(storage, []).append(_Write(before, now, op))

    def raised(self, func: Callable[..., Any], token: Any) -> None:
        """Forget a function that raised."""
        self._running.pop()

    def backward_called(self, root: Tensor) -> None:
        """Note that the run does its own backward."""
        self.backward_ran = True

    def pack(self, tensor: Tensor) -> _Saved:
        """Keep what autograd saves, with the operation that runs."""
        with torch._C.DisableTorchFunction():
            alias = tensor.detach()
            if self._running:
                op, saved = self._running[-1]
            else:
                op, saved = self.op(self._function_name()), []
            record = _Saved(alias, version_of(alias), op)
            saved.append(record)
            return record

    def unpack(self, record: _Saved) -> Tensor:
        """Give autograd what it saved, and note the first one that was written since."""
        found = None if record.version is None else version_of(record.alias)
        if found is not None and found != record.version and self.found is None:
            with torch._C.DisableTorchFunction():
                self.found = self._conflict(record, found)
        return record.alias

    def _conflict(self, record: _Saved, found: int) -> InplaceConflict:
        assert record.version is not None
        storage = storage_of(record.alias)
        writes = [w for w in self.writes.get(storage or -1, []) if w.after > record.version]
        changer = min(writes, key=lambda w: w.op.index).op if writes else None
        tensor = describe(record.alias)
        name = self._labels.get(storage, "")
        whose = f"its {record.role} {tensor}" + (f" ({name})" if name else "")
        by = changer.name if changer is not None else "something outside of torch"
        fact = (
            f"{record.saver.name} saved {whose} at version {record.version}; {by} wrote it, and the "
            f"backward found version {found}"
        )
        return InplaceConflict(
            saver=record.saver,
            changer=changer,
            tensor=tensor,
            role=record.role,
            name=name,
            saved_version=record.version,
            found_version=found,
            fact=fact,
        )

    def _function_name(self) -> str:
        """Name the custom Function that saves now."""
        for frame in self.frames():
            if frame.f_code.co_name == "apply" and frame.f_code.co_filename == _FUNCTION_FILE:
                return f"{getattr(frame.f_locals.get('cls'), '__name__', 'Function')}.apply"
        return "save_for_backward"
