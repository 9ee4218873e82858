"""Which custom Functions and operators there are: those that a run applies, and those that packages define."""

from __future__ import annotations

import math
import sys
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..lean import dataclass
from ..record.applied import Applied, Operators
from ..sources import of_frame, of_object, rank
from .binding import linked_arguments
from .calls import is_float
from .defined import SIGNATURES, short_name
from .lines import head

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import FrameType

    from ..findings import Location
    from ..record.applied import Application

_KEPT = 1 << 22
"""Elements of all arguments together above which only a corner of each is kept."""


_TORCH = ("aten", "prims", "prim", "profiler", "c10d", "_c10d_functional", "quantized", "inductor")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCall:
    """One application of a custom Function or operator.

    Attributes:
        function: The Function class, or the operator overload.
        kind: ``function`` or ``operator``.
        name: Its name, without the functions it is nested in.
        args, kwargs: The arguments; tensors are detached copies, of very large calls only corners. Empty
            where a call of the same shapes was recorded before.
        shapes: Shape of every tensor argument, by flat index, as it was.
        dtypes: Its dtype.
        requires: Flat indices of the tensors that required a gradient; none where gradients were off.
        linked: Flat indices of the tensors that another argument (a module, a closure) also holds.
        location: The user's line that applied it.
        defined: The line of its class, or of the operator's implementation.
        backward: The line of its ``backward``.
        autocast: Whether autocast was on.
        twice: Whether its backward ran with ``create_graph=True``.
        whole: Whether the arguments are there, with all their values.
        corner: Size to which longer axes were cut, or 0.
        recorded: Whether gradients were on, so that autograd would have noted the call.
    """

    function: Any
    kind: str
    name: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    shapes: Mapping[int, tuple[int, ...]]
    dtypes: Mapping[int, str]
    requires: tuple[int, ...]
    linked: tuple[int, ...] = ()
    location: Location | None = None
    defined: Location | None = None
    backward: Location | None = None
    autocast: bool = False
    twice: bool = False
    whole: bool = True
    corner: int = 0
    recorded: bool = True

    @property
    def apply(self) -> Callable[..., Any]:
        """What to call with the arguments."""
        found: Callable[..., Any] = (
            self.function.apply if self.kind == "function" else self.function
        )
        return found

    @property
    def signature(self) -> tuple[Any, ...]:
        """What makes two calls alike: shapes and dtypes of the tensors."""
        return (self.function, tuple(self.shapes.items()), tuple(self.dtypes.values()))


def record_functions(run: Callable[[], Any]) -> list[RecordedCall]:
    """Run something and record every custom Function and operator that it applies.

    Each call of ``Function.apply`` is seen, however its bound method was stored, with or without
    gradients, inside torch's own code or not. Operators are seen where Python calls them.

    Args:
        run: Called once, without arguments.

    Returns:
        The calls in order; Functions of torch itself are left out.
    """
    with recording() as calls:
        run()
    return calls


@contextmanager
def recording() -> Iterator[list[RecordedCall]]:
    """Record what is applied inside the block; the list fills when it ends, also by an error.

    Compiled models run eagerly inside: what is compiled applies nothing that could be seen.
    """
    recorder = _Recorder()
    found: list[RecordedCall] = []
    try:
        with _eagerly(), recorder:
            yield found
    finally:
        found += [
            replace(call, twice=True) if call.function in recorder.twice else call
            for call in recorder.calls
            if call.kind == "operator" or is_users(call.function)
        ]


def _eagerly() -> AbstractContextManager[Any]:
    if "torch._dynamo" not in sys.modules:
        return nullcontext()
    stance: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return stance


def is_compiled(model: torch.nn.Module) -> bool:
    """Say whether a model or a part of it goes through torch.compile, so that its Functions must too."""
    return any(
        type(module).__name__ == "OptimizedModule"
        or getattr(module, "_compiled_call_impl", None) is not None
        for module in model.modules()
    )


def is_users(function: type) -> bool:
    """Say whether a Function is written by the user or an installed package, and not by torch."""
    module = getattr(function, "__module__", "") or ""
    if module.partition(".")[0] in ("torch", "functorch", "torchvision", "torchaudio"):
        return module.partition(".")[0] not in ("torch", "functorch")
    place = of_object(function)
    return place is None or rank(place.file) > 0


class _Recorder:
    def __init__(self) -> None:
        self.calls: list[RecordedCall] = []
        self.twice: set[Any] = set()
        self._applications = Applied(self._applied, self._differentiated)
        self._operators = Operators(self._operator, _TORCH)
        self._seen: dict[tuple[Any, ...], set[int]] = {}

    def __enter__(self) -> Self:
        self._open = ExitStack()
        if _has_custom_operators():
            self._open.enter_context(self._operators)
        self._open.enter_context(self._applications)
        return self

    def __exit__(self, *exc: object) -> None:
        self._open.close()

    def _differentiated(self, function: type) -> None:
        if torch.is_grad_enabled():
            self.twice.add(function)

    def _operator(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if is_custom_operator(func):
            call = _describe(func, "operator", args, kwargs, recorded=True)  # it is below autograd
            self.add(call, args, kwargs, sys._getframe(2))  # above the mode
        return func(*args, **kwargs)

    def _applied(self, seen: Application, args: Any, kwargs: Any) -> None:
        call = _describe(seen.function, "function", args, kwargs, recorded=seen.grad_enabled)
        self.add(call, args, kwargs, seen.caller)

    def add(self, call: RecordedCall, args: Any, kwargs: Any, frame: FrameType) -> None:
        """Record a call, with its values where no call like it was seen before."""
        known = self._seen.get(call.signature)
        new = {*call.requires, *((-1,) if call.recorded else ())}
        if known is None:
            count = sum(1 for signature in self._seen if signature[0] is call.function)
            self._seen[call.signature] = new
            call = replace(call, location=of_frame(frame))
            self.calls.append(_with_values(call, args, kwargs) if count < SIGNATURES else call)
        elif not known.issuperset(new):
            known |= new
            self.calls.append(replace(call, location=of_frame(frame)))


def _has_custom_operators() -> bool:
    """Say whether anybody but torch has registered an operator with ``torch.library.custom_op`` so far."""
    return any(
        name.partition("::")[0] not in _TORCH
        and (getattr(definition._init_fn, "__module__", None) or "").partition(".")[0] != "torch"
        for name, definition in list(torch._library.custom_ops.OPDEFS.items())
    )


def is_custom_operator(func: Any) -> bool:
    """Say whether an operator was registered through ``torch.library`` outside torch."""
    if not isinstance(func, torch._ops.OpOverload):
        return False  # a higher-order operator such as cond
    namespace = func.namespace
    return namespace not in _TORCH and _implementation(func) is not None


def _describe(function: Any, kind: str, args: Any, kwargs: Any, *, recorded: bool) -> RecordedCall:
    leaves = pytree.tree_leaves((tuple(args), dict(kwargs)))
    tensors = {i: v for i, v in enumerate(leaves) if isinstance(v, Tensor)}
    definition = of_object(function) if kind == "function" else of_object(_implementation(function))
    return RecordedCall(
        function=function,
        kind=kind,
        name=short_name(function) if kind == "function" else str(function._schema.name),
        args=(),
        kwargs={},
        shapes={i: tuple(t.shape) for i, t in tensors.items()},
        dtypes={i: str(t.dtype).removeprefix("torch.") for i, t in tensors.items()},
        requires=tuple(i for i, t in tensors.items() if t.requires_grad) if recorded else (),
        recorded=recorded,
        linked=tuple(linked_arguments(leaves)),
        defined=definition,
        backward=head(function, "backward", "vjp") if kind == "function" else definition,
        autocast=any(torch.is_autocast_enabled(d) for d in ("cpu", "cuda")),
        whole=False,
    )


def _with_values(call: RecordedCall, args: Any, kwargs: Any) -> RecordedCall:
    """Add detached copies of the arguments; of very large ones corners of equal size."""
    leaves, spec = pytree.tree_flatten((tuple(args), dict(kwargs)))
    tensors = [v for v in leaves if isinstance(v, Tensor)]
    if any(_has_no_values(t) for t in tensors):
        return call
    corner = 0
    if sum(t.numel() for t in tensors) > _KEPT:
        corner = next(
            size
            for size in (64, 32, 16, 8, 4, 2, 1)
            if size == 1 or sum(_corner_size(t, size) for t in tensors) <= _KEPT
        )
    kept = [_copy(v, corner) if isinstance(v, Tensor) else v for v in leaves]
    plain_args, plain_kwargs = pytree.tree_unflatten(kept, spec)
    return replace(call, args=plain_args, kwargs=plain_kwargs, whole=True, corner=corner)


def _corner_size(tensor: Tensor, corner: int) -> int:
    return math.prod(min(size, corner) for size in tensor.shape)


def _copy(tensor: Tensor, corner: int) -> Tensor:
    with torch.no_grad(), torch._C._DisableTorchDispatch():
        value = tensor.detach()
        if corner:
            value = value[tuple(slice(0, corner) for _ in value.shape)]
            if not is_float(value) and value.dtype != torch.bool:
                value = value % corner  # indices into an axis that was cut
        return value.clone(memory_format=torch.contiguous_format)


def _has_no_values(tensor: Tensor) -> bool:
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor) or tensor.device.type == "meta":
        return True
    if tensor.layout != torch.strided:
        return True
    return type(tensor) not in (Tensor, torch.nn.Parameter, torch.nn.Buffer)


def _implementation(func: Any) -> Any:
    """Return the Python function behind an operator, where it was registered with ``torch.library``."""
    name = str(func._schema.name)
    definition = torch._library.custom_ops.OPDEFS.get(name)
    if definition is not None:
        return definition._init_fn
    return None


# --- what packages define ------------------------------------------------------------------------


def floats_of(call: RecordedCall) -> list[int]:
    """Return the flat indices of the floating tensors."""
    leaves = pytree.tree_leaves((call.args, dict(call.kwargs)))
    return [i for i, value in enumerate(leaves) if isinstance(value, Tensor) and is_float(value)]
