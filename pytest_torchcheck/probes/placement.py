"""Where tensors would be on a GPU, found out without one: a run that pretends that the model was moved.

The values stay on the CPU, so that data-dependent code runs as ever; only the answers to "which
device?" are those of a GPU, and each tensor is remembered as one of the model's device or one that
stayed behind. It finds what the ``meta`` device lets pass (its kernels accept CPU indices and
weights in many operations).
"""

from __future__ import annotations

import linecache
import os
import re
import sys
import weakref
from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from .. import sources
from ..lean import dataclass
from .device_rules import EACH_ALONE, FIRST_DECIDES, ONE_DEVICE, PACKED, PLACEHOLDERS, SYNCS
from .recorded.watch import Watch, in_backward, name_of, storage_of, tensors_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import FrameType

    from ..findings import Location

PRETENDED = torch.device("cuda", 0)

StrayKind = Literal["attribute", "factory", "generator", "literal", "fixed", "unknown"]
"""Why a tensor stayed on the CPU: ``attribute`` of a module that ``.to()`` does not know; made by a ``factory`` call
without ``device=``; drawn from a ``generator``, which decides where; by a call or ``.to``/``.cpu`` that names the CPU by
``literal``; by one whose
device was
``fixed`` elsewhere (a global, an attribute); ``unknown`` where no call of torch made it (NumPy)."""


_WHERE = {"device", "is_cuda", "is_cpu", "get_device"}
_MOST = 64
_LAYERS = tuple(os.path.join(*torch.__path__[:1], name, "") for name in ("nn", "distributions"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stray:
    """A tensor that stays on the CPU when the model is moved.

    Attributes:
        kind: Why.
        name: The attribute's qualified name, or the call that made it, such as ``torch.arange``.
        shape: Its sizes.
        dtype: Such as ``float32``.
        location: The line that makes or assigns it.
    """

    kind: StrayKind
    name: str
    shape: tuple[int, ...]
    dtype: str
    location: Location | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """An operation that would be given tensors of two devices, or that cannot read a GPU's memory.

    Attributes:
        op: Such as ``Tensor.add``; ``Tensor.numpy`` where a GPU tensor would be handed to NumPy.
        stray: The tensor on the CPU; None for NumPy.
        location: The user's line.
        module: Qualified name of the module in whose forward it is.
    """

    op: str
    stray: Stray | None
    location: Location | None
    module: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    """A place that waits for the device: how, where."""

    how: str
    location: Location | None
    module: str


@dataclass(slots=True)
class Placement:
    """What a pretended run saw."""

    mixtures: list[Mixture] = field(default_factory=list)
    syncs: list[Sync] = field(default_factory=list)
    ops: int = 0

    def split_off(self, mixtures: int, syncs: int) -> Placement:
        """Take away what was seen after so many mixtures and syncs, and return it."""
        later = Placement(mixtures=self.mixtures[mixtures:], syncs=self.syncs[syncs:])
        del self.mixtures[mixtures:], self.syncs[syncs:]
        return later


def _in_distribution() -> bool:
    """Say whether a distribution of torch is at work: it looks at its arguments, and may draw until it accepts."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(12):
        if frame is None:
            return False
        if str(frame.f_globals.get("__name__", "")).startswith("torch.distributions"):
            return True
        frame = frame.f_back
    return False


class Pretend(Watch):
    """Runs a block as if the model and its inputs were on a GPU.

    Args:
        model: The model; its parameters and buffers count as moved.
        inputs: Tensors that the user would move.
        strays: Tensors known to stay behind, by their description.
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: Iterable[Tensor],
        strays: Iterable[tuple[Tensor, Stray]] = (),
    ) -> None:
        super().__init__(model)
        self.found = Placement()
        self._moved: dict[int, weakref.ref[Tensor]] = {}
        self._stayed: dict[int, tuple[Tensor, Stray]] = {id(t): (t, s) for t, s in strays}
        self._unsure: dict[int, weakref.ref[Tensor]] = {}  # made by torch, who knows where
        self._seen: set[tuple[Any, ...]] = set()
        self._transformed = False
        for tensor in (*model.parameters(), *model.buffers(), *inputs):
            if id(tensor) not in self._stayed:
                self._moved[id(tensor)] = weakref.ref(tensor)

    def around(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Run one torch function on the CPU, whatever device it asks for."""
        full = name_of(func)
        name = full.rpartition(".")[2]
        if func is torch.device:
            return func(*args, **kwargs)
        if func is Tensor.backward or name == "_set_grad_enabled":
            return super().around(func, types, args, kwargs)
        above = sys._getframe(2).f_code  # above the mode
        caller = above.co_filename
        if name in _WHERE and full.startswith("Tensor."):
            if above.co_name == "__new__":
                # of a tensor's class: one that is made for a GPU that is not there ends the process
                return func(*args, **kwargs)
            return self._where(func, name, args, kwargs, caller)
        self.found.ops += 1
        given = list(tensors_in((args, kwargs)))
        self._transformed |= any(map(torch._C._functorch.is_functorch_wrapped_tensor, given))
        moved = [tensor for tensor in given if self._is_moved(tensor) or self._is_gradient(tensor)]
        self._look(full, name, given, moved)
        args, kwargs, asked = _onto_cpu(name, args, kwargs)
        if asked == "cpu" and not _is_told(caller):
            # torch's own code asked for the device of a tensor, and was told the truth
            asked = "" if given else "unknown"
        if not given and not asked and kwargs.get("generator") is not None:
            asked = "generator"
        if name == "cuda":
            result, asked = args[0].clone(), "moved"
        else:
            result = func(*args, **kwargs)
        if (asked or name in ("to", "type_as", "cpu")) and any(result is t for t in given):
            # .to() and .cpu() gave the tensor itself: it must not change its place
            result = torch.ops.aten.alias(result)
        self._place(full, name, args, given, moved, result, asked)
        return result

    # -- answers --------------------------------------------------------------------------------

    def _where(
        self, func: Callable[..., Any], name: str, args: Any, kwargs: Any, caller: str
    ) -> Any:
        moved = bool(args) and (self._is_moved(args[0]) or self._is_gradient(args[0]))
        if not moved or not _is_told(caller):
            return func(*args, **kwargs)
        return {"device": PRETENDED, "is_cuda": True, "is_cpu": False, "get_device": 0}[name]

    def _is_moved(self, tensor: Tensor) -> bool:
        return _holds(self._moved, tensor)

    def _is_gradient(self, tensor: Tensor) -> bool:
        """Say whether the engine made a tensor in a backward, or gave one back that was saved for it.

        Gradients are on the device of what they belong to.
        Its address may be that of a moved tensor that is gone; those that stayed are kept alive.
        """
        return in_backward() and id(tensor) not in self._stayed

    # -- what is wrong --------------------------------------------------------------------------

    def _look(self, full: str, name: str, given: list[Tensor], moved: list[Tensor]) -> None:
        if not moved:
            return
        if name in ("numpy", "__array__"):
            self._mixture(full, None)
            return
        if name in SYNCS and self._is_moved(given[0]):
            self._sync(SYNCS[name])
            return
        if name == "__getitem__" and any(
            t.dtype == torch.bool and t.dim() and self._is_moved(t) for t in given[1:]
        ):
            self._sync("a mask as an index")  # how many are left is known to the device only
        plain = name.strip("_")
        table = plain == "getitem" and not self._is_moved(given[0]) and any(t.dim() for t in moved)
        if plain not in ONE_DEVICE and not table:
            return
        for tensor in given[:1] if table else given:
            if tensor.dim() == 0:
                continue  # a number on the CPU goes with every device
            if plain in PACKED and tensor.dtype == torch.int64:
                continue
            if plain in PLACEHOLDERS and not tensor.numel():
                continue
            if id(tensor) in self._stayed:
                self._mixture(full, self._stayed[id(tensor)][1])
            elif not self._is_moved(tensor) and self._is_foreign(tensor):
                self._mixture(
                    full,
                    _stray("unknown", "a tensor that no call of torch made", tensor, self.locate()),
                )

    def _sync(self, how: str) -> None:
        if _in_distribution():
            return  # what torch does by default is no choice of the model's
        location = self.locate()
        key = ("sync", how, location)
        if key not in self._seen and len(self.found.syncs) < _MOST:
            self._seen.add(key)
            self.found.syncs.append(Sync(how=how, location=location, module=self.module_name))

    def _is_foreign(self, tensor: Tensor) -> bool:
        """Say whether a tensor came from outside of torch: a leaf that nothing seen has made."""
        return (
            tensor.grad_fn is None
            and not tensor.requires_grad
            and not in_backward()
            and type(tensor) is Tensor
            and not _holds(self._unsure, tensor)
            and not self._transformed  # vmap makes tensors that no call of torch returns
            and not self._is_view(tensor)
        )

    def _is_view(self, tensor: Tensor) -> bool:
        """Say whether a tensor has the memory of a moved one, as one of another class made of it has."""
        place, alive = storage_of(tensor), (ref() for ref in list(self._moved.values()))
        return place is not None and any(t is not None and storage_of(t) == place for t in alive)

    def _mixture(self, op: str, stray: Stray | None) -> None:
        location = self.locate()
        key = ("mixture", stray.name if stray else op, stray.location if stray else location)
        if key in self._seen or len(self.found.mixtures) >= _MOST:
            return
        self._seen.add(key)
        self.found.mixtures.append(
            Mixture(op=op, stray=stray, location=location, module=self.module_name)
        )

    # -- where the results are ------------------------------------------------------------------

    def _place(
        self,
        full: str,
        name: str,
        args: Any,
        given: list[Tensor],
        moved: list[Tensor],
        result: Any,
        asked: str,
    ) -> None:
        outputs = [t for t in tensors_in(result) if not any(t is tensor for tensor in given)]
        if not outputs:
            return
        if asked == "unknown":
            self._unsure.update((id(output), weakref.ref(output)) for output in outputs)
            return
        if asked == "moved":
            self._move(outputs)
        elif asked == "cpu" or name == "cpu":
            kind: StrayKind = "literal" if name == "cpu" or _says_cpu(self.locate()) else "fixed"
            self._strand(outputs, kind, full)
        elif name == "tensor" or not given:
            self._strand(outputs, "generator" if asked else "factory", full)
        elif name.strip("_") in FIRST_DECIDES:
            self._like(outputs, given[0])
        elif name == "_pack_padded_sequence":
            self._move(outputs[:1])  # the batch sizes are always on the CPU
        elif name in EACH_ALONE:
            for output, source in zip(outputs, given, strict=False):
                self._like([output], source)
        elif name in ("type_as", "to") and len(given) > 1:
            self._like(outputs, given[1])
        elif moved:
            self._move(outputs)
        else:
            stayed = next((t for t in given if id(t) in self._stayed), None)
            if stayed is not None:
                self._like(outputs, stayed)

    def _like(self, outputs: list[Tensor], source: Tensor) -> None:
        if self._is_moved(source):
            self._move(outputs)
        elif id(source) in self._stayed:
            stray = self._stayed[id(source)][1]
            for output in outputs:
                self._stayed[id(output)] = (output, stray)
                self._moved.pop(id(output), None)

    def _move(self, outputs: list[Tensor]) -> None:
        for output in outputs:
            self._stayed.pop(id(output), None)
            self._moved[id(output)] = weakref.ref(output)

    def _strand(self, outputs: list[Tensor], kind: StrayKind, full: str) -> None:
        location = self.locate()
        for output in outputs:
            self._stayed[id(output)] = (output, _stray(kind, full, output, location))
            self._moved.pop(id(output), None)


def _holds(known: dict[int, weakref.ref[Tensor]], tensor: Tensor) -> bool:
    found = known.get(id(tensor))
    return found is not None and found() is tensor


def _is_told(caller: str) -> bool:
    """Say whether code in a file is told the pretended device: the user's, and torch's layers and distributions.

    Code that was written while the program runs (``<string>``) acts for whoever had it written.
    Other code of torch, as that of checkpointing and autocast, would look for a real GPU.
    """
    return sources.rank(caller) > 0 or caller.startswith((*_LAYERS, "<"))


def _stray(kind: StrayKind, name: str, tensor: Tensor, location: Location | None) -> Stray:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return Stray(kind=kind, name=name, shape=tuple(tensor.shape), dtype=dtype, location=location)


def stray_attribute(name: str, tensor: Tensor, location: Location | None) -> Stray:
    """Describe a tensor that an attribute holds."""
    return _stray("attribute", name, tensor, location)


def _onto_cpu(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any], str]:
    """Replace the devices in a call by the CPU; say which was asked for: ``moved``, ``cpu`` or none."""
    asked = ""

    def change(value: Any, *, index: bool = False) -> Any:
        nonlocal asked
        if isinstance(value, torch.device) or (
            isinstance(value, str) and re.fullmatch(r"(cpu|cuda)(:\d+)?", value)
        ):
            kind = value.type if isinstance(value, torch.device) else value.partition(":")[0]
            if kind not in ("cpu", "cuda"):
                return value
            asked = "moved" if kind == "cuda" else "cpu"
            return torch.device("cpu")
        if index and isinstance(value, int) and not isinstance(value, bool):
            asked = "moved"
            return torch.device("cpu")
        return value

    if name == "to" and len(args) > 1:
        args = (args[0], change(args[1], index=True), *args[2:])
    elif name != "cuda":
        args = tuple(map(change, args))
    if kwargs.get("device") is not None:
        kwargs["device"] = change(kwargs["device"], index=True)
    return args, kwargs, asked


def _says_cpu(location: Location | None) -> bool:
    """Say whether the line itself names the CPU."""
    if location is None:
        return False
    text = linecache.getline(location.file, location.line)
    return re.search(r"[\"']cpu[\"']|\.cpu\(", text) is not None and "is_available" not in text
