"""The calls of registered operators, seen where Python makes them, at no cost for the kernels of torch's own."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self

import torch

from .modes import Kernels

if TYPE_CHECKING:
    from collections.abc import Callable, Container


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
