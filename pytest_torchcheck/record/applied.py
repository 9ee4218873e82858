"""The calls of custom autograd Functions and registered operators, seen at no cost for any other call."""

from __future__ import annotations

import sys
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self

import torch

from .modes import Kernels

if TYPE_CHECKING:
    from collections.abc import Callable, Container
    from types import FrameType

_APPLY = getattr(getattr(torch.autograd.Function.apply, "__func__", None), "__code__", None)
"""The code of ``Function.apply`` where that is written in Python, and has a frame; else None."""
_ASKED = "_is_setup_context_defined"
"""What ``Function.apply`` calls before anything else, however its bound method was stored."""
_RUNS = ("apply", "apply_boxed")
"""What autograd's engine calls of the node of a custom Function."""


class Applied:
    """Call one function for each ``Function.apply`` inside, and another for each backward of a custom Function.

    Args:
        applied: Called with the frame of ``apply``, whose locals are ``cls``, ``args`` and ``kwargs``.
        ran: Called with the Function before its backward runs.
    """

    def __init__(
        self, applied: Callable[[FrameType], object], ran: Callable[[type], object]
    ) -> None:
        self._applied, self._ran = applied, ran
        self._open = ExitStack()

    def __enter__(self) -> Self:
        module = torch.autograd.function
        if _APPLY is not None:
            self._put(module, _ASKED, self._asking(getattr(module, _ASKED)))
        else:
            function = torch.autograd.Function
            self._put(function, "apply", self._applying(vars(function)["apply"]))
        nodes = module.BackwardCFunction
        for name in _RUNS:
            if (before := vars(nodes).get(name)) is not None:
                self._put(nodes, name, self._running(before))
        return self

    def __exit__(self, *exc: object) -> None:
        self._open.close()

    def _put(self, home: Any, name: str, value: Any) -> None:
        self._open.callback(setattr, home, name, vars(home)[name])
        setattr(home, name, value)

    def _asking(self, before: Callable[[Any], bool]) -> Callable[[Any], bool]:
        def asked(setup_context: Any) -> bool:
            frame = sys._getframe(1)
            while frame.f_code is asked.__code__ and frame.f_back is not None:
                frame = frame.f_back  # another such block is open
            if frame.f_code is _APPLY:
                self._applied(frame)
            return before(setup_context)

        return asked

    def _applying(self, before: Any) -> Any:
        """Return a method in place of an ``apply`` that has no frame of its own."""
        applied = self._applied

        def apply(cls: type, *args: Any, **kwargs: Any) -> Any:
            applied(sys._getframe())
            return before.__get__(None, cls)(*args, **kwargs)

        return classmethod(apply)

    def _running(self, before: Any) -> Callable[..., Any]:
        def run(node: Any, *args: Any) -> Any:
            self._ran(node._forward_cls)
            return before(node, *args)

        return run


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
