"""The calls of custom autograd Functions and registered operators, seen at no cost for any other call."""

from __future__ import annotations

import sys
import threading
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Self

import torch

from ..lean import dataclass
from .modes import Kernels

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Mapping
    from types import FrameType

_RUNS = ("apply", "apply_boxed")
"""What autograd's engine calls of the node of a custom Function."""


@dataclass(eq=False, slots=True, kw_only=True)
class Application:
    """One call of ``Function.apply`` that runs.

    Attributes:
        function: The Function class.
        caller: The frame that called it, which may be of torch's own code.
        grad_enabled: Whether gradients were on; inside ``forward`` they never are.
    """

    function: type
    caller: FrameType
    grad_enabled: bool


class _Here(threading.local):
    """What runs on this thread.

    Attributes:
        begun: An application that has made its context, and has not yet asked for ``forward``.
        forwarded: One whose ``forward`` is done, and ``setup_context`` is not.
        running: Those that are in either, the outermost first.
    """

    def __init__(self) -> None:
        self.begun: Application | None = None
        self.forwarded: Application | None = None
        self.running: list[Application] = []


class Applied:
    """Call one function for each ``Function.apply`` inside, and another for each backward of a custom Function.

    ``Function.apply`` itself cannot be replaced: users store its bound method, and it may be written in
    C. What it looks up on the class is replaced instead: ``_backward_cls``, whose object is the context,
    then ``forward`` and ``setup_context``. Inside transforms of ``torch.func`` it calls
    ``custom_function_call``.

    Args:
        applied: Called with the application, the arguments and the keyword arguments, before ``forward``.
        ran: Called with the Function before its backward runs.
    """

    def __init__(
        self,
        applied: Callable[[Application, tuple[Any, ...], Mapping[str, Any]], object] | None = None,
        ran: Callable[[type], object] | None = None,
    ) -> None:
        self._applied, self._ran = applied, ran
        self._open = ExitStack()
        self._here = _Here()

    def __enter__(self) -> Self:
        module, meta = torch.autograd.function, type(torch.autograd.Function)
        self._put(module, "custom_function_call", self._transforming)
        self._put(meta, "__getattribute__", self._looking_up)
        nodes = module.BackwardCFunction
        for name in _RUNS if self._ran is not None else ():
            if name in vars(nodes):
                self._put(nodes, name, self._differentiating)
        return self

    def __exit__(self, *exc: object) -> None:
        self._open.close()
        self._here = _Here()  # a frame keeps every local of its function alive

    @property
    def outermost(self) -> Application | None:
        """The outermost application that runs on this thread."""
        return self._here.running[0] if self._here.running else None

    def _put(self, home: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Replace an attribute by what ``make`` makes of it, for as long as the block is open."""
        if name in vars(home):
            self._open.callback(setattr, home, name, vars(home)[name])
        else:
            self._open.callback(delattr, home, name)
        setattr(home, name, make(getattr(home, name)))

    @contextmanager
    def _running(self, application: Application) -> Iterator[None]:
        running = self._here.running  # this block may be closed meanwhile
        running.append(application)
        try:
            yield
        finally:
            running.remove(application)

    def _looking_up(self, before: Callable[[type, str], Any]) -> Callable[[type, str], Any]:
        def look_up(function: type, name: str) -> Any:
            found = before(function, name)
            if name not in _LOOKED_UP or not issubclass(function, torch.autograd.Function):
                return found
            here, caller = self._here, _caller()
            if name == "_backward_cls":
                here.begun = Application(
                    function=function, caller=caller, grad_enabled=torch.is_grad_enabled()
                )
            elif name == "forward":
                if (application := _same(here.begun, function, caller)) is not None:
                    here.begun = None
                    return self._forward(application, found)
            elif (application := _same(here.forwarded, function, caller)) is not None:
                here.forwarded = None
                return self._setup_context(application, found)
            return found

        return look_up

    def _forward(self, application: Application, before: Callable[..., Any]) -> Callable[..., Any]:
        function: Any = application.function
        separate = function.setup_context is not torch.autograd.Function.setup_context

        def forward(*args: Any) -> Any:
            if self._applied is not None:
                self._applied(application, args if separate else args[1:], {})
            with self._running(application):
                result = before(*args)
            if separate:
                self._here.forwarded = application
            return result

        return forward

    def _setup_context(
        self, application: Application, before: Callable[..., Any]
    ) -> Callable[..., Any]:
        def setup_context(*args: Any) -> Any:
            with self._running(application):
                return before(*args)

        return setup_context

    def _transforming(self, before: Callable[..., Any]) -> Callable[..., Any]:
        def call(function: type, *args: Any, **kwargs: Any) -> Any:
            application = Application(
                function=function, caller=_caller(), grad_enabled=torch.is_grad_enabled()
            )
            if self._applied is not None:
                self._applied(application, args, kwargs)
            with self._running(application):
                return before(function, *args, **kwargs)

        return call

    def _differentiating(self, before: Callable[..., Any]) -> Callable[..., Any]:
        def run(node: Any, *args: Any) -> Any:
            if self._ran is not None:
                self._ran(node._forward_cls)
            return before(node, *args)

        return run


_LOOKED_UP = frozenset({"_backward_cls", "forward", "setup_context"})


def _caller() -> FrameType:
    """Return the frame that called into this file: another such block may be open."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename == __file__ and frame.f_back is not None:
        frame = frame.f_back
    return frame


def _same(application: Application | None, function: type, caller: FrameType) -> Application | None:
    """Return an application if it is of this Function and from this frame, else None."""
    if application is None or application.function is not function:
        return None
    return application if application.caller is caller else None


class Operators:
    """Run the operators that Python calls by name through ``around``, as :class:`~.modes.Kernels` would.

    A mode costs more than a small kernel, in forward and backward. An operator that somebody
    registers from Python is called from Python too: the mode is on for that call alone.

    Args:
        around: What :class:`~.modes.Kernels` takes.
        leave: Namespaces of operators that nobody asks for.
    """

    def __init__(self, around: Callable[..., Any], leave: Container[str]) -> None:
        self._around, self._leave = around, leave
        self._here = threading.local()
        self._open = ExitStack()

    def __enter__(self) -> Self:
        overload, packet = torch._ops.OpOverload, torch._ops.OpOverloadPacket
        self._put(overload, lambda func: str(func._schema.name))
        self._put(packet, lambda func: str(func._qualified_op_name))
        return self

    def __exit__(self, *exc: object) -> None:
        self._open.close()

    def _put(self, home: Any, name_of: Callable[[Any], str]) -> None:
        before = vars(home)["__call__"]

        def called(func: Any, /, *args: Any, **kwargs: Any) -> Any:
            here = self._here
            if getattr(here, "busy", False) or name_of(func).partition("::")[0] in self._leave:
                return before(func, *args, **kwargs)
            here.busy = True
            try:
                with Kernels(self._around):
                    return before(func, *args, **kwargs)
            finally:
                here.busy = False

        self._open.callback(setattr, home, "__call__", before)
        home.__call__ = called
