"""The two torch modes of the package: one around every torch function, one around every kernel.

Whoever observes or changes a run gives one of them a callable. The callable receives what torch gives a
mode, ``(func, types, args, kwargs)``, runs the call itself and returns its result. Within it the mode is
off, so that its own calls of torch are not seen.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any, Self

import torch
from torch._C._dynamo import eval_frame as _eval_frame
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from .. import deadline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import TracebackType

    Around = Callable[[Callable[..., Any], Iterable[type], tuple[Any, ...], dict[str, Any]], Any]


class UnobservableError(RuntimeError):
    """An operator cannot be run under an observer as it runs without one."""


def _refuse(func: Any) -> None:
    """Refuse an operator that torch compiles by itself, where that would lose gradients.

    Without an observer ``cond``, ``scan`` or ``flex_attention`` is compiled with the tensors that
    its functions close over as operands. Under a mode torch runs it as it is, and autograd sees the
    operands alone.

    Raises:
        UnobservableError: Gradients are recorded, and ``func`` is such an operator.
    """
    if (
        isinstance(func, torch._ops.HigherOrderOperator)
        and torch.is_grad_enabled()
        and not torch._C._are_functorch_transforms_active()
    ):
        raise UnobservableError(f"{func.name()} runs otherwise where it is observed")


class Functions(TorchFunctionMode):
    """Run every call of a torch function through ``around``.

    Args:
        around: Called with ``(func, types, args, kwargs)``; its result is the call's.
    """

    def __init__(self, around: Around) -> None:
        super().__init__()
        self._around = around

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run one torch function; what torch compiles by itself, for ``cond`` and the like, is passed on."""
        if torch.compiler.is_dynamo_compiling():  # a constant to the compiler, which reads this
            return func(*args, **(kwargs or {}))
        _refuse(func)
        deadline.keep()
        return self._around(func, types, args, dict(kwargs or {}))


class Kernels(TorchDispatchMode):
    """Run every kernel, in the forward and in the backward, through ``around``.

    Args:
        around: Called with ``(func, types, args, kwargs)``; its result is the kernel's. A higher-order
            operator such as ``cond`` is one opaque call, whose ``func`` is no ``OpOverload``.
    """

    supports_higher_order_operators = True

    def __init__(self, around: Around) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._around = around

    def __enter__(self) -> Self:
        """Switch the mode on; what the user compiled runs eagerly, since torch compiles nothing under a mode."""
        self._eagerly = contextlib.ExitStack()
        if "torch._dynamo" in sys.modules:
            self._eagerly.enter_context(torch.compiler.set_stance("force_eager"))
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *exc: object) -> None:
        """Switch the mode off."""
        self._eagerly.close()
        super().__exit__(*exc)  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return (
            False  # else the first kernel imports torch._dynamo: 3 s, and nothing is compiled here
        )

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run one kernel."""
        if type(func) is not torch._ops.OpOverload:
            _refuse(func)
        deadline.keep()
        return self._around(func, types, args, {} if kwargs is None else dict(kwargs))


def _out_of_sight(method: Callable[..., Any]) -> None:
    """Let torch's compiler run a method, and all that it calls, without looking at it.

    ``torch.compiler.disable`` does the same, and imports the compiler first.
    """
    skip = _eval_frame._FrameAction.SKIP
    _eval_frame.set_code_exec_strategy(method.__code__, _eval_frame._FrameExecStrategy(skip, skip))


_out_of_sight(Kernels.__torch_dispatch__)


class Observer:
    """A context manager whose :meth:`around` runs every torch function, or every kernel, of its block.

    The mode is made on entering and let go of on leaving, so that an observer is in no reference cycle.
    """

    mode: type[Functions | Kernels] = Functions

    def __enter__(self) -> Self:
        """Switch the mode on."""
        self._mode = self.mode(self.around)
        self._mode.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Switch the mode off."""
        mode = self._mode
        del self._mode
        mode.__exit__(kind, error, traceback)

    def around(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run one call and return its result; see :class:`Functions` and :class:`Kernels`."""
        return func(*args, **kwargs)


class KernelObserver(Observer):
    """An :class:`Observer` of kernels."""

    mode = Kernels
