"""What the probes share: every call of a torch function with its user line and its module."""

from __future__ import annotations

import dataclasses
import os
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import TYPE_CHECKING, Any, Final, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import resolve_name

from ... import sources
from ...lean import dataclass
from ...objects.trees import is_freed
from ...objects.trees import storage_of as storage_of
from ...record.modes import Functions, Observer
from ..gradient.switched_off import decorator_line, with_line

if TYPE_CHECKING:
    from types import FrameType, TracebackType

    from torch.utils.hooks import RemovableHandle

    from ...findings import Location

_TORCH: Final = os.path.dirname(torch.__file__) + os.sep
_SWITCHES: Final = tuple(
    os.path.join(*path) for path in (("autograd", "grad_mode.py"), ("utils", "_contextlib.py"))
)
"""Where torch's own code runs when a line of the user's switches gradients off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One call of a torch function, as the user would name it.

    Attributes:
        index: Place in the run, from 0.
        name: Such as ``torch.tanh``, ``Tensor.detach``, ``F.dropout``.
        location: The user's innermost line; for operations inside torch's own modules, the line
            that called the module. None where no line of the run is the user's.
        module: Qualified name of the module whose forward ran, ``""`` for the root or outside.
        module_class: Class name of that module, ``""`` outside of all modules.
        backward: Whether it ran inside a backward pass (recomputation, a custom Function).
    """

    index: int
    name: str
    location: Location | None = None
    module: str = ""
    module_class: str = ""
    backward: bool = False

    def __str__(self) -> str:
        place = f" in {self.module} ({self.module_class})" if self.module else ""
        return f"{self.name}{place}"


@dataclass(frozen=True, slots=True)
class Scope:
    """A module on the stack of running forwards."""

    name: str
    module: nn.Module


class Watch(Observer):
    """Base of the probes: sees each torch function called, with its line and module.

    Subclasses override :meth:`before`, :meth:`after` and the other events. Inside these, calls of
    torch are not watched. What Python runs during a backward (recomputation, custom Functions,
    hooks) is seen too, as calls with ``op.backward``.

    Args:
        module: Names are qualified relative to it; others go by their class name.
    """

    def __init__(self, module: nn.Module | None = None) -> None:
        self._names: dict[int, str] = {}
        if module is not None:
            for name, child in module.named_modules():
                self._names.setdefault(id(child), name)
        self._root = module
        self.scopes: list[Scope] = []
        self._handles: list[RemovableHandle] = []
        self._until: FrameType | None = None
        self.leaves: tuple[Tensor, ...] = ()  # those that the backward pass which begins is for
        self._eagerly = ExitStack()
        self._count = 0
        self._off: tuple[Location | None, bool] = (None, False)  # line; whether by a decorator
        self._off_before: tuple[Location | None, bool] = (None, False)

    def __enter__(self) -> Self:
        self._until = sys._getframe(1)
        self._handles = [
            register_module_forward_pre_hook(self._entered),
            register_module_forward_hook(self._left, always_call=True),
        ]
        if "torch._dynamo" in sys.modules:  # compiled code calls no torch functions: run it eagerly
            self._eagerly.enter_context(torch.compiler.set_stance("force_eager"))
            self._eagerly.enter_context(warnings.catch_warnings())
            warnings.filterwarnings("ignore", "Using `torch.compile.module.` when there are global")
        self._engine = getattr(torch.autograd, _ENGINE)
        setattr(torch.autograd, _ENGINE, self._run_backward)
        return super().__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, traceback)
        setattr(torch.autograd, _ENGINE, self._engine)
        self._eagerly.close()
        for handle in self._handles:
            handle.remove()
        self._until = None  # a frame keeps every local of its function alive

    def around(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Run one torch function between :meth:`before` and :meth:`after`."""
        if func is Tensor.backward or func is torch.autograd.backward:
            self.leaves = tuple(tensors_in(kwargs.get("inputs")))
            for root in tensors_in(args[:1] or kwargs.get("tensors")):
                self.backward_called(root)
            self.leaves = ()
            return func(*args, **kwargs)
        if getattr(func, "__name__", "") == "_set_grad_enabled":
            self._grad_mode_set(bool(args[0]))
            return func(*args, **kwargs)
        with torch._C.DisableTorchFunction():  # other watches do not see what this one asks
            token = self.before(func, args, kwargs)
        try:
            result = func(*args, **kwargs)
        except BaseException:  # told on: an interrupt leaves no open operation behind either
            self.raised(func, token)
            raise
        with torch._C.DisableTorchFunction():
            self.after(func, args, kwargs, result, token)
        return result

    # what subclasses override

    def before(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """See a call before it runs; what it returns is given to :meth:`after`."""

    def after(
        self, func: Callable[..., Any], args: Any, kwargs: Any, result: Any, token: Any
    ) -> None:
        """See a call and its result."""

    def raised(self, func: Callable[..., Any], token: Any) -> None:
        """See a call that raised instead, as the last one of a recomputation does on purpose."""

    @property
    def module_name(self) -> str:
        """The name of the module that runs; empty for the root, and outside of all."""
        return self.scopes[-1].name if self.scopes else ""

    def module_entered(self, module: nn.Module, args: Any) -> None:
        """See a module about to run; it is already on :attr:`scopes`."""

    def module_left(self, module: nn.Module, args: Any, result: Any) -> None:
        """See a module that has run; it is still on :attr:`scopes`."""

    def backward_called(self, root: Tensor) -> None:
        """See ``root.backward()`` about to run."""

    # what subclasses use

    def op(self, name: str, location: Location | None = None) -> Op:
        """Make the next operation, at the line and in the module that run now."""
        scope = self.scopes[-1] if self.scopes else None
        made = Op(
            index=self._count,
            name=name,
            location=self.locate() if location is None else location,
            module=scope.name if scope else "",
            module_class=type(scope.module).__name__ if scope else "",
            backward=in_backward(),
        )
        self._count += 1
        return made

    def locate(self) -> Location | None:
        """Return the user's innermost line that runs now, within the watched block."""
        return sources.of_frame(sys._getframe(1), until=self._until)

    def user_lines(self) -> tuple[Location, ...]:
        """Return the user's lines that run now, within the watched block, from the innermost."""
        found = (sources.of_frame(frame, until=self._until) for frame in self.frames())
        return tuple(dict.fromkeys(line for line in found if line is not None))

    def frames(self) -> Iterator[FrameType]:
        """Iterate over the running frames of the watched block, from the innermost."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            yield frame
            frame = None if frame is self._until else frame.f_back

    def where_gradients_stopped(self) -> Location | None:
        """Return the line that turned gradients off, where they are off: ``with`` or decorator."""
        if torch.is_grad_enabled():
            return None
        if self._off[1] or torch.is_inference_mode_enabled():
            inner: FrameType | None = None
            for frame in self.frames():
                if frame.f_code.co_name == "decorate_context" and inner is not None:
                    return decorator_line(inner)
                if sources.rank(frame.f_code.co_filename):
                    inner = frame
        if torch.is_inference_mode_enabled():
            return next(filter(None, map(with_line, self.frames())), None)
        return self._off[0]

    def _run_backward(self, *args: Any, **kwargs: Any) -> Any:
        # the call of backward has switched this mode off, and the engine calls Python
        with Functions(self.around):
            return self._engine(*args, **kwargs)

    def _grad_mode_set(self, enabled: bool) -> None:
        if enabled == torch.is_grad_enabled():
            return
        if enabled:
            self._off_before = self._off
            self._off = (None, False)
            return
        between: set[str] = set()  # the functions of torch that the user's line called
        by_torch = False
        for frame in self.frames():
            file = frame.f_code.co_filename
            if sources.rank(file):
                break
            between.add(frame.f_code.co_name)
            by_torch = by_torch or (file.startswith(_TORCH) and not file.endswith(_SWITCHES))
        if "__exit__" in between:  # the end of an enable_grad within the block
            self._off = self._off_before
        else:  # what torch's own code switches off, no line of the user's does
            self._off = (None if by_torch else self.locate(), "decorate_context" in between)

    def _entered(self, module: nn.Module, args: Any) -> None:
        name = self._names.get(id(module), type(module).__name__)
        self.scopes.append(Scope(name, module))
        with torch._C.DisableTorchFunction():
            self.module_entered(module, args)

    def _left(self, module: nn.Module, args: Any, result: Any) -> None:
        if self.scopes and self.scopes[-1].module is module:
            with torch._C.DisableTorchFunction():
                self.module_left(module, args, result)
            self.scopes.pop()


_ENGINE = "_engine_run_backward"  # what both backward and grad of torch.autograd end in


SORTS = frozenset({"sort", "msort", "argsort"})
"""Functions that put values in order of their size, without their namespaces."""

_NAMES: dict[Callable[..., Any], str] = {}


def name_of(func: Callable[..., Any]) -> str:
    """Name a torch function as users write it: ``F.relu``, ``Tensor.detach``, ``torch.tanh``."""
    known = _NAMES.get(func)
    if known is not None:
        return known
    full: str | None = resolve_name(func)
    if not (is_torchs := full is not None):
        full = f"{getattr(func, '__module__', None) or 'torch'}.{getattr(func, '__name__', func)}"
    for start, short in (
        ("torch.nn.functional.", "F."),
        ("torch._C._nn.", "F."),
        ("torch.Tensor.", "Tensor."),
    ):
        if full.startswith(start):
            full = short + full[len(start) :]
    full = full.removesuffix(".__get__")
    if is_torchs:  # a function of the user's may hold a model
        _NAMES[func] = full
    return full


def in_backward() -> bool:
    """Say whether autograd's engine is running on this thread."""
    return bool(torch._C._current_graph_task_id() != -1)


def nodes_of(*roots: Any, most: int = 200_000, beyond: Collection[Any] = ()) -> set[Any]:
    """Return every autograd node that ``roots`` (nodes or None) reach, without a way through those of ``beyond``."""
    seen: set[Any] = set(beyond)
    stack = [root for root in roots if root is not None]
    while stack and len(seen) < most:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        stack.extend(following for following, _ in node.next_functions if following is not None)
    return seen


def reaches_leaves(loss: Tensor, beyond: Collection[Any]) -> bool:
    """Say whether a loss reaches what takes a gradient in a way that leads through none of these autograd nodes."""
    return any(
        type(node).__name__ == "AccumulateGrad" for node in nodes_of(loss.grad_fn, beyond=beyond)
    )


def tensors_in(thing: Any, depth: int = 6) -> Iterator[Tensor]:
    """Iterate over the tensors in nested lists, tuples, dicts and dataclasses, in order."""
    if isinstance(thing, Tensor):
        yield thing
    elif depth == 0 or thing is None or isinstance(thing, (str, int, float, torch.Size)):
        return
    elif isinstance(thing, Mapping):
        for value in thing.values():
            yield from tensors_in(value, depth - 1)
    elif isinstance(thing, (list, tuple, set, frozenset)):
        for value in thing:
            yield from tensors_in(value, depth - 1)
    elif dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        for field in dataclasses.fields(thing):
            yield from tensors_in(getattr(thing, field.name, None), depth - 1)


def operands(args: Iterable[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """Return the tensors that a call was given, as :func:`tensors_in` finds them in its arguments."""
    found: list[Tensor] = []
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor):
            found.append(value)
        elif value is not None and not isinstance(value, (bool, int, float, str)):
            found += tensors_in(value, 5)
    return found


def readable(tensor: Tensor) -> bool:
    """Say whether a tensor holds numbers that can be looked at: not on meta, sparse, faked or batched."""
    return (
        tensor.layout is torch.strided
        and not (tensor.is_meta or tensor.is_nested)
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        and type(tensor).__name__ != "FakeTensor"
        and not is_freed(tensor)
    )


def unseen(tensor: Tensor) -> AbstractContextManager[Any]:
    """Return a block in which no mode sees, or pays for, what is computed from a tensor without a class of its own."""
    if type(tensor) in (Tensor, nn.Parameter):
        block: AbstractContextManager[Any] = torch._C._DisableTorchDispatch()
        return block
    return nullcontext()


def version_of(tensor: Tensor) -> int | None:
    """Return how often a tensor was written in place, or None where that is not counted."""
    return None if tensor.is_inference() else tensor._version


def describe(tensor: Tensor) -> str:
    """Say dtype and shape: ``float32 [8, 16]``."""
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
