"""Run what failed once more and keep its history: which op made which tensor, on which line.

The history holds plain facts; tensors are held only by the failing call, and only as long as the
:class:`Replay` lives.
"""

from __future__ import annotations

import contextlib
import inspect
import re
import sys
import warnings
import weakref
from traceback import walk_tb
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from ... import sources
from ...interrupts import Readable
from ...probes.gradient.switched_off import gradients_off_line
from ...record.hooks import hooked
from ...record.modes import Observer
from .freed_graphs import FreedGraphs
from .history import Call, Fact, Op, Replay, arguments_of, name_of, tensors_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType


_SILENT = frozenset(
    {"shape", "dtype", "device", "is_cuda", "requires_grad", "grad", "grad_fn", "layout", "ndim", "is_leaf",
     "size", "dim", "numel", "stride", "is_floating_point", "is_complex", "__len__", "__repr__", "__format__",
     "is_sparse", "is_nested", "is_mkldnn", "is_contiguous", "storage_offset", "untyped_storage", "data_ptr",
     "element_size", "_version", "get_device", "is_quantized", "names", "__hash__", "__iter__"}
)  # fmt: skip


def user_frame(frame: FrameType | None) -> tuple[str, int, str] | None:
    """Return file, line and function of the innermost frame of the user's own code, else of a package."""
    fallback: tuple[str, int, str] | None = None
    while frame is not None:
        code = frame.f_code
        value = sources.rank(code.co_filename)
        if value:
            place = (code.co_filename, frame.f_lineno, getattr(code, "co_qualname", code.co_name))
            if value == 2:
                return place
            fallback = fallback or place
        frame = frame.f_back
    return fallback


def outer_frames(frame: FrameType | None, most: int = 2) -> tuple[tuple[str, int, str], ...]:
    """Return where the user's innermost function was called, and that one in turn, up to a ``forward``."""
    own: list[tuple[str, int, str]] = []
    while frame is not None and len(own) <= most:
        code = frame.f_code
        if sources.rank(code.co_filename) == 2:
            own.append(
                (code.co_filename, frame.f_lineno, getattr(code, "co_qualname", code.co_name))
            )
            if code.co_name in ("forward", "training_step"):
                return tuple(own[1:])
        frame = frame.f_back
    return ()


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _version(tensor: torch.Tensor) -> int:
    try:
        return tensor._version
    except RuntimeError:  # inference tensors count no versions
        return 0


class _Recorder(Observer):
    """Keeps every call, which op made each tensor, and what was changed in place."""

    def __init__(
        self, model: nn.Module | None, replay: Replay, freed: FreedGraphs | None = None
    ) -> None:
        self.replay = replay
        self.freed = freed
        self.stack: list[tuple[nn.Module, str]] = []
        self._names: dict[int, str] = {}
        self._modules: dict[int, str] = {}
        self._makers: dict[int, tuple[weakref.ref[torch.Tensor], Op]] = {}
        self._model = model
        if model is not None:
            tensors = (*model.named_parameters(), *model.named_buffers())
            self._names = {id(tensor): name for name, tensor in tensors}
            self._modules = {id(module): name for name, module in model.named_modules()}

    def _fact(self, tensor: torch.Tensor) -> Fact:
        made = self._makers.get(id(tensor))
        lazy = isinstance(
            tensor, nn.parameter.UninitializedParameter | nn.parameter.UninitializedBuffer
        )
        plain = not lazy and tensor.layout == torch.strided and not tensor.is_nested
        storage = 0
        if plain and tensor.device.type != "meta":
            with contextlib.suppress(
                RuntimeError, NotImplementedError
            ):  # wrapper tensors have none
                storage = tensor.untyped_storage().data_ptr()
        return Fact(
            shape=() if lazy or tensor.is_nested else tuple(tensor.shape),
            dtype=str(tensor.dtype).removeprefix("torch."),
            device=str(tensor.device),
            name=self._names.get(id(tensor), ""),
            made_by=made[1] if made is not None and made[0]() is tensor else None,
            requires_grad=tensor.requires_grad,
            grad_fn=type(tensor.grad_fn).__name__ if tensor.grad_fn is not None else "",
            contiguous=not plain or tensor.is_contiguous(),
            storage=storage,
        )

    def around(self, func: Any, types: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run one torch function, and keep the call."""
        name = name_of(func)
        if name in _SILENT and func is not torch.autograd.grad:  # not the attribute of that name
            return func(*args, **kwargs)
        given = tensors_in((args, kwargs))
        op = Op(
            name=name,
            module=self.stack[-1][1] if self.stack else "",
            inputs=tuple(map(self._fact, given)),
            arguments=arguments_of(args, kwargs),
            frame=user_frame(sys._getframe(1)),
            outer=outer_frames(sys._getframe(1)),
            inference=gradients_off_line(_frames(sys._getframe(1)))
            if torch.is_inference_mode_enabled()
            else None,
        )
        self.replay.ops.append(op)
        versions = [_version(tensor) for tensor in given]
        backward = self.freed.before(func, op, args, kwargs) if self.freed is not None else None
        try:
            result = func(*args, **kwargs)
        except BaseException as error:
            known = self.replay.failing
            if known is None or known.error is not error:
                self.replay.failing = Call(op, args, kwargs, error)
                if self.freed is not None and backward is not None:
                    # told now: whoever reruns may put the model back before the replay is read
                    frame = sys._getframe(1)
                    self.replay.held = self.freed.held(self._model, frame, backward)
                    self.replay.shared = self.freed.shared(frame, backward)
            raise
        if self.freed is not None:
            self.freed.after(backward, self._model, sys._getframe(1))
        op.changed = tuple(
            fact
            for tensor, fact, version in zip(given, op.inputs, versions, strict=True)
            if _version(tensor) != version
        )
        made = tensors_in(result)
        op.outputs = tuple(map(self._fact, made))
        inputs = {id(tensor) for tensor in given}
        for tensor in made:
            if id(tensor) not in inputs or op.changed:
                self._makers[id(tensor)] = (weakref.ref(tensor), op)
            if self.freed is not None:
                self.freed.note(tensor, op)
        for tensor, fact in zip(given, op.inputs, strict=True):
            if fact in op.changed:
                self._makers[id(tensor)] = (weakref.ref(tensor), op)
        return result

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if module is self._model and not self.replay.inputs:
            self._name_inputs(module, args, kwargs)
        self.stack.append((module, self._modules.get(id(module), type(module).__name__)))

    def leave(self, module: nn.Module) -> None:
        while self.stack:  # what stands above raised, and the user's code caught it
            if self.stack.pop()[0] is module:
                return

    def _name_inputs(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        for name, value in bind(module, args, kwargs).items():
            found = tensors_in(value)
            for place, tensor in enumerate(found):
                full = name if isinstance(value, torch.Tensor) else f"{name}[{place}]"
                self._names.setdefault(id(tensor), full)
                self.replay.inputs[full] = self._fact(tensor)


def bind(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by the names of the module's ``forward``."""
    names: list[str] = []
    try:
        signature = inspect.signature(module.forward)
        names += signature.parameters
        bound = signature.bind_partial(*args, **kwargs)
    except (TypeError, ValueError):  # the call does not fit the signature, or there is none
        names += [f"input {place}" for place in range(len(names), len(args))]
        return {**dict(zip(names, args, strict=False)), **kwargs}
    found: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        kind = bound.signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            found.update(value)
        elif kind is inspect.Parameter.VAR_POSITIONAL:
            found.update({f"{name}[{place}]": item for place, item in enumerate(value)})
        else:
            found[name] = value
    return found


@contextlib.contextmanager
def _watching(recorder: _Recorder) -> Iterator[None]:
    def before(module: nn.Module, args: Any) -> None:
        # the keyword arguments are not given to global hooks; the frame of _call_impl has them
        frame = sys._getframe(1)
        kwargs = frame.f_locals.get("kwargs") if module is recorder._model else None
        recorder.enter(module, args, kwargs if isinstance(kwargs, dict) else {})

    def after(module: nn.Module, args: Any, output: Any) -> None:
        recorder.leave(module)

    handles = [register_module_forward_pre_hook(before), register_module_forward_hook(after)]
    with hooked(handles), recorder:
        yield


_ANOMALY = "Error detected in "


def _read_anomaly(replay: Replay, caught: list[warnings.WarningMessage]) -> None:
    """Take the failing node and the user's forward line out of anomaly mode's warnings."""
    for warning in caught:
        text = str(warning.message)
        if not text.startswith(_ANOMALY):
            continue
        replay.failed_node = text[len(_ANOMALY) :].split(".", 1)[0].split()[0]
        found = re.findall(r'File "([^"]+)", line (\d+), in (\S+)', text)
        own = [place for place in found if sources.rank(place[0]) == 2]
        packages = [place for place in found if sources.rank(place[0]) == 1]
        best = (own or packages)[-1:]
        for filename, line, function in best:
            replay.saved_at = sources.of_line(filename, int(line), function)
        return


def replay(
    rerun: Callable[[], object],
    *,
    model: nn.Module | None = None,
    like: BaseException | None = None,
    anomaly: bool = False,
    graphs: bool = False,
) -> Replay | None:
    """Run ``rerun`` once under instruments.

    Args:
        rerun: Does again what failed; it may change the model as the first run did.
        model: Whose modules, parameters and buffers are named.
        like: The error of the first run; a replay that raises another type of error is no evidence,
            unless it comes out of torch's code on the same line (attention has a fast path, not
            taken when watched).
        anomaly: Also turn on autograd's anomaly mode, which names the forward line of a failing
            backward.
        graphs: Follow which graphs are freed, and run twice: the step that left its graph behind
            runs before the one that fails.

    Returns:
        The history, or None where the run raised nothing or something else.

    Raises:
        KeyboardInterrupt: The user interrupted the run.
    """
    found = Replay()
    freed = FreedGraphs() if graphs else None
    recorder = _Recorder(model, found, freed)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        watch = (
            torch.autograd.detect_anomaly(check_nan=False) if anomaly else contextlib.nullcontext()
        )
        try:
            with watch, _watching(recorder), Readable(contextlib.nullcontext()):
                rerun()
                if freed is not None:
                    freed.run += 1
                    rerun()
        except Exception as error:  # the user's code may raise anything
            found.error = error
    found.modules = tuple(name for _, name in recorder.stack)
    recorder.stack.clear()
    if anomaly:
        _read_anomaly(found, caught)
    if found.error is None or (like is not None and not _alike(found.error, like)):
        return None
    if found.failing is not None and not _in_chain(found.failing.error, found.error):
        found.failing = None  # it was caught by the user's code, and something else failed later
    return found


def _alike(again: BaseException, first: BaseException) -> bool:
    if type(again) is type(first):
        return True
    places = []
    for error in (again, first):
        frames = [frame for frame, _ in walk_tb(error.__traceback__)]
        own = not frames or sources.rank(frames[-1].f_code.co_filename) > 0
        place = sources.of_error(error)
        places.append(None if own or place is None else (place.file, place.line))
    return places[0] is not None and places[0] == places[1]


def calls_of(run: Callable[[], object], *, model: nn.Module | None = None) -> tuple[Op, ...]:
    """Run what succeeds once under instruments, and return its calls in order; none where it raises after all."""
    found = Replay()
    recorder = _Recorder(model, found)
    try:
        with warnings.catch_warnings(), _watching(recorder):
            warnings.simplefilter("ignore")
            run()
    except Exception:  # the user's code may raise anything
        return ()
    return tuple(found.ops)


def _in_chain(error: BaseException, last: BaseException | None) -> bool:
    seen: set[int] = set()
    while last is not None and id(last) not in seen:
        if last is error:
            return True
        seen.add(id(last))
        last = last.__cause__ or last.__context__
    return False
