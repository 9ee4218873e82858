"""Run a step with nothing allocated: models, batches and errors under ``FakeTensorMode``.

Fake tensors know shape, dtype and device and hold no bytes, so that a step of a model far larger than
the machine can be tracked. The device is the CPU throughout: fake ``cuda`` tensors with autograd abort
the process on a build without CUDA, and the allocations do not depend on the device.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import logging
import math
import sys
import types
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch._subclasses import fake_tensor as _fake
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes as _no_modes

from ... import sources
from ...objects.peek import cells, names_in
from ...state import is_lazy
from ...text.printable import message_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ...findings import Location
    from .tracker import MemoryTracker

_NEEDS_DATA = (_fake.DataDependentOutputException, _fake.DynamicOutputShapeException)
_NO_KERNEL = (_fake.UnsupportedOperatorException, NotImplementedError)


class Unmeasurable(Exception):
    """A step cannot be run on fake tensors; nothing can be said of its memory without running it.

    Attributes:
        reason: A whole sentence.
        op: The operation at which it stopped; empty where it was none.
        location: The user's line.
        error: What was raised.
    """

    def __init__(
        self,
        reason: str,
        *,
        op: str = "",
        location: Location | None = None,
        error: BaseException | None = None,
    ) -> None:
        super().__init__(reason)
        self.reason, self.op, self.location, self.error = reason, op, location, error


def explain(error: BaseException, tracker: MemoryTracker | None = None) -> Unmeasurable:
    """Say why a step could not be run on fake tensors."""
    func = getattr(error, "func", None) or (tracker.running if tracker is not None else None)
    op = "" if func is None else str(func)
    location = sources.of_error(error)
    at = f" at line {location.line}" if location is not None else ""
    if isinstance(error, _NEEDS_DATA):
        reason = (
            f"what runs after {op}{at} depends on the values of a tensor, which a fake one has not"
        )
    elif isinstance(error, _NO_KERNEL) or "no fake impl" in message_of(error):
        reason = f"{op or 'an operation'}{at} has no fake kernel (torch.library.register_fake gives it one)"
    else:
        first = (message_of(error).splitlines() or [""])[0]
        reason = f"it cannot run on fake tensors{at}: {type(error).__name__}: {first}"
    return Unmeasurable(reason, op=op, location=location, error=error)


@contextlib.contextmanager
def fake_mode(*callables: Any) -> Iterator[FakeTensorMode]:
    """Enter a mode in which tensors are made without memory, and let none of them stay behind.

    What the user's functions keep between calls is put back afterwards (closures, globals, classes,
    ``lru_cache``), so that no fake tensor turns up in a real run.

    Args:
        callables: The user's functions that will run.
    """
    kept = _Kept(callables)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    log = logging.getLogger(FakeTensorMode.__module__)
    silent = log.disabled
    log.disabled = True  # what a fake kernel refuses is explained, not logged with a traceback
    try:
        with mode:
            yield mode
    finally:
        log.disabled = silent
        kept.restore()


class _Kept:
    """What the user's code keeps between calls, as far as it can be reached from some functions.

    Closure cells, dicts, lists and sets in them, in the globals that the code names and on the classes
    that it names; and ``lru_cache``. A rope table cached for fake positions, say, must not turn up
    later.
    """

    def __init__(self, callables: Iterable[Any]) -> None:
        self._cells: list[tuple[types.CellType, Any]] = []
        self._containers: list[tuple[Any, Any]] = []
        self._caches: list[tuple[Any, int]] = []
        self._seen: set[int] = set()
        stack = list(callables)
        while stack and len(self._seen) < _MOST_REACHED:
            thing = stack.pop()
            if id(thing) in self._seen:
                continue
            self._seen.add(id(thing))
            stack.extend(self._look(thing))

    def _look(self, thing: Any) -> Iterator[Any]:
        """Note what is kept by one thing, and return what it names."""
        if isinstance(thing, functools._lru_cache_wrapper):
            self._caches.append((thing, thing.cache_info().currsize))
            yield thing.__wrapped__
        elif isinstance(thing, functools.partial):
            yield thing.func
        elif isinstance(thing, types.MethodType | staticmethod | classmethod):
            yield thing.__func__
        elif isinstance(thing, types.FunctionType):
            if not sources.rank(thing.__code__.co_filename):
                return
            for cell in cells(thing).values():
                self._cells.append((cell, cell.cell_contents))
                yield cell.cell_contents
            for name in names_in(thing.__code__):
                if name in thing.__globals__:
                    yield thing.__globals__[name]
        elif isinstance(thing, type):
            if _is_users(thing):
                yield from vars(thing).values()
        elif type(thing) in (dict, list, set):
            self._containers.append((thing, copy.copy(thing)))

    def restore(self) -> None:
        """Put it all back."""
        for cell, content in self._cells:
            if cell.cell_contents is not content:
                cell.cell_contents = content
        for container, then in self._containers:
            if isinstance(container, list):
                if len(container) != len(then) or any(
                    a is not b for a, b in zip(container, then, strict=True)
                ):
                    container[:] = then
            elif isinstance(container, set):
                if container != then:
                    container.clear()
                    container.update(then)
            elif len(container) != len(then) or any(
                key not in container or container[key] is not value for key, value in then.items()
            ):
                container.clear()
                container.update(then)
        for cache, size in self._caches:
            if cache.cache_info().currsize != size:
                cache.cache_clear()


_MOST_REACHED = 5000


def _is_users(kind: type) -> bool:
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None)
    return file is not None and sources.rank(file) > 0


def correct(func: Any, args: tuple[Any, ...], out: Any) -> Any:
    """Mend what torch's fake kernels get wrong about memory, and stop before what would crash.

    The fake kernel of an LSTM layer returns an empty workspace, where the CPU's keeps what backward
    needs of every time step; its real size is found by one real layer, kept small.

    Raises:
        Unmeasurable: A sparse tensor was made; or one on CUDA on a build without it, where autograd
            would abort the process.
    """
    if func is _rnn_layer and torch.is_grad_enabled() and out[3] is not None:
        rest = tuple(tuple(a) if isinstance(a, list) else a for a in args[7:])
        x, w, u = (tuple(t.shape) for t in args[:3])
        size = _workspace(x, w, u, tuple(args[5].shape), rest, args[0].dtype)
        return (*out[:3], torch.empty(size, dtype=torch.uint8))
    for tensor in out if isinstance(out, list | tuple) else (out,):
        if not isinstance(tensor, Tensor):
            continue
        if tensor.layout is not torch.strided:
            layout = str(tensor.layout).removeprefix("torch.")
            raise Unmeasurable(
                f"{func} returns a {layout} tensor, whose size is not known without values"
            )
        if tensor.device.type == "cuda":
            _refuse_absent(tensor)
    return out


_rnn_layer = getattr(getattr(torch.ops.aten, "mkldnn_rnn_layer", None), "default", None)
_LAYER_FLOPS = 2e9  # about 0.1 s on one core


@functools.cache
def _workspace(
    input: tuple[int, ...],
    weight_ih: tuple[int, ...],
    weight_hh: tuple[int, ...],
    state: tuple[int, ...],
    rest: tuple[Any, ...],
    dtype: torch.dtype,
) -> int:
    """Return the bytes of one LSTM layer's workspace; linear in time steps beyond what is cheap to run."""
    steps = input[0]
    cost = 2 * math.prod(input[:-1]) * (math.prod(weight_ih) + math.prod(weight_hh))
    if cost > 1.01 * _LAYER_FLOPS and steps > 4:
        many = min(steps - 1, max(4, int(steps * _LAYER_FLOPS / cost)))
        few = many // 2
        high, low = (
            _workspace((n, *input[1:]), weight_ih, weight_hh, state, rest, dtype)
            for n in (many, few)
        )
        return high + (high - low) * (steps - many) // (many - few)
    with _no_modes(), torch.enable_grad():
        x, w, u = (torch.zeros(s, dtype=dtype) for s in (input, weight_ih, weight_hh))
        bias = torch.zeros(weight_ih[0], dtype=dtype)
        h = torch.zeros(state, dtype=dtype)
        assert _rnn_layer is not None
        return int(_rnn_layer(x, w, u, bias, bias, h, h, *rest)[3].numel())


def build(
    factory: Callable[[], nn.Module],
    mode: FakeTensorMode,
    dtype: torch.dtype | None = None,
    *,
    fallback: Callable[[], nn.Module] | None = None,
) -> nn.Module:
    """Build a model with no memory; inside the mode, or from a real one where that fails.

    Args:
        factory: The user's.
        mode: The mode that the tensors are to belong to.
        dtype: What floating tensors become.
        fallback: Gives the real model, with the shapes of lazy parameters known; the factory outside the
            mode by default.

    Raises:
        Unmeasurable: It can be built neither way, or asks for a device that is not there.
    """
    reason: Exception | None = None
    try:
        with mode:
            model = factory()
        if not isinstance(model, nn.Module):
            raise Unmeasurable(f"the factory returned {type(model).__name__}, no module")
        if not _has_lazy(model):
            return as_fake(model, mode, dtype)
    except Unmeasurable:
        raise
    except Exception as error:  # initialisation may look at values, in ways of its own
        reason = error
    try:
        with _no_modes():
            model = (fallback or factory)()
    except Exception as error:  # a factory may raise anything
        raise explain(error) from reason
    return as_fake(model, mode, dtype)


def _has_lazy(model: nn.Module) -> bool:
    return any(is_lazy(tensor) for tensor in (*model.parameters(), *model.buffers()))


def as_fake(model: nn.Module, mode: FakeTensorMode, dtype: torch.dtype | None = None) -> nn.Module:
    """Return a model with every tensor fake and on the CPU; the model itself where that is so already.

    Args:
        model: Real, on meta, or fake; it is not changed.
        mode: The mode that the tensors are to belong to.
        dtype: What floating tensors become.

    Raises:
        Unmeasurable: It cannot be copied, or is on a device that is not there.
    """
    if any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
        raise Unmeasurable("TorchScript modules cannot be copied onto fake tensors")
    found = {id(t): t for t in (*model.parameters(), *model.buffers()) if t is not None}
    for module in model.modules():
        found |= {id(v): v for v in vars(module).values() if isinstance(v, Tensor)}
    for tensor in found.values():
        _refuse_absent(tensor)
    if all(_is_ready(tensor, mode, dtype) for tensor in found.values()):
        return model
    memo: dict[int, Any] = {key: fake_tensor(t, mode, dtype) for key, t in found.items()}
    for key, tensor in found.items():
        if tensor.is_leaf and tensor.grad is not None:
            memo[key].grad = fake_tensor(tensor.grad, mode, dtype)
    try:
        with _no_modes():
            return copy.deepcopy(model, memo)
    except Exception as error:  # any object may refuse to be copied
        raise Unmeasurable(
            f"the model cannot be copied ({type(error).__name__}: {message_of(error)}); declare a factory",
            error=error,
        ) from error


def fake_tensor(tensor: Tensor, mode: FakeTensorMode, dtype: torch.dtype | None = None) -> Tensor:
    """Return a fake tensor of the same shape, strides and kind, on the CPU where it was on meta.

    Args:
        tensor: Any strided tensor; what is on no strided layout becomes strided.
        mode: The mode that it is to belong to.
        dtype: What a floating tensor becomes.
    """
    if _is_ready(tensor, mode, dtype):
        return tensor
    _refuse_absent(tensor)
    device = torch.device("cpu") if tensor.device.type == "meta" else tensor.device
    kind = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
    with mode, torch.no_grad():
        if tensor.layout is torch.strided:
            made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=kind, device=device)
        else:
            made = torch.empty(tensor.shape, dtype=kind, device=device)
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(made, requires_grad=tensor.requires_grad)
    return made.requires_grad_(tensor.requires_grad)


def _is_ready(tensor: Tensor, mode: FakeTensorMode, dtype: torch.dtype | None) -> bool:
    return (
        isinstance(tensor, FakeTensor)
        and tensor.fake_mode is mode
        and tensor.device.type != "meta"
        and (dtype is None or tensor.dtype == dtype or not tensor.is_floating_point())
    )


def _refuse_absent(tensor: Tensor) -> None:
    if tensor.device.type == "cuda" and not torch.cuda.is_available():
        raise Unmeasurable(
            "it asks for a cuda device, and fake cuda tensors need a build with CUDA"
        )
