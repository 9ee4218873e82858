"""Listen to the calls that matter to a training step, and undo every patch on every way out."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.modules import module as torch_module
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from .. import compiler

Around = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""Called in place of a function, with the original and the arguments; returns what it returns."""

Handlers = dict[str, Around]
"""By event kind; see :func:`listening` for the names."""


@contextlib.contextmanager
def listening(
    handlers: Handlers,
    *,
    before_step: Callable[
        [torch.optim.Optimizer, tuple[Any, ...], dict[str, Any]],
        tuple[tuple[Any, ...], dict[str, Any]] | None,
    ],
    after_step: Callable[..., None] | None = None,
    before_forward: Callable[[torch.nn.Module], None] | None = None,
    after_forward: Callable[[torch.nn.Module, Any], None] | None = None,
) -> Iterator[None]:
    """Route the calls of a training step through handlers.

    Args:
        handlers: ``backward``, ``zero-grad``, ``scheduler-step``, ``scale``, ``unscale``,
            ``scaler-step``, ``scaler-update``, ``clip-norm``, ``clip-value``, ``mode``,
            ``load-state``, ``convert``, ``copy``. Each is called around the original; what has no
            handler is left alone.
        before_step: Called before every optimizer's step, whichever class it is of; returns other
            arguments or None.
        after_step: Called after it with the optimizer and the arguments.
        before_forward: Called before every module's forward.
        after_forward: Called after it with its output, also when it raised.
    """
    with contextlib.ExitStack() as stack:
        for kind, owner, name in _patched():
            if kind in handlers:
                wrap(stack, owner, name, handlers[kind])
        for name, kind in (("clip_grad_norm_", "clip-norm"), ("clip_grad_value_", "clip-value")):
            if kind in handlers:
                _wrap_everywhere(stack, name, handlers[kind])
        # to patch a method of tensors would be to compile it again
        if "copy" in handlers and not compiler.has_compiled():
            wrap(stack, torch, "_foreach_copy_", handlers["copy"])
            wrap(stack, torch.Tensor, "copy_", handlers["copy"])
        stack.callback(register_optimizer_step_pre_hook(before_step).remove)
        if after_step is not None:
            stack.callback(register_optimizer_step_post_hook(after_step).remove)
        if before_forward is not None:
            before = before_forward
            stack.callback(
                torch_module.register_module_forward_pre_hook(
                    lambda module, args: before(module)
                ).remove
            )
        if after_forward is not None:
            after = after_forward
            stack.callback(
                torch_module.register_module_forward_hook(
                    lambda module, args, out: after(module, out), always_call=True
                ).remove
            )
        yield


_SCALER = {
    "scale": "scale",
    "unscale_": "unscale",
    "step": "scaler-step",
    "update": "scaler-update",
}


def _patched() -> Iterator[tuple[str, Any, str]]:
    """Yield kinds of events, and the owner and name of every function that is one."""
    yield "backward", torch.autograd, "backward"
    for cls in subclasses(torch.optim.Optimizer):
        if "zero_grad" in vars(cls):
            yield "zero-grad", cls, "zero_grad"
    yield "zero-grad", torch.nn.Module, "zero_grad"
    for cls in subclasses(LRScheduler):
        if "step" in vars(cls):
            yield "scheduler-step", cls, "step"
    for cls in subclasses(torch.amp.GradScaler):
        for method, kind in _SCALER.items():
            if method in vars(cls):
                yield kind, cls, method
    yield "mode", torch.nn.Module, "train"
    yield "load-state", torch.nn.Module, "load_state_dict"
    for method in ("half", "bfloat16", "to", "type"):
        yield "convert", torch.nn.Module, method


def subclasses(cls: type) -> list[type]:
    """Return a class and all that derive from it."""
    found, stack = [], [cls]
    while stack:
        current = stack.pop()
        if current not in found:
            found.append(current)
            stack += current.__subclasses__()
    return found


def _routed(original: Any, around: Around) -> Callable[..., Any]:
    """Return a function that calls a handler in place of another one."""

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return around(original, args, kwargs)

    return wrapper


def wrap(stack: contextlib.ExitStack, owner: Any, name: str, around: Around) -> None:
    """Wrap a function, or a method; one of a base that cannot be written to in the class itself."""
    original = getattr(owner, name)
    if name in vars(owner):
        stack.callback(setattr, owner, name, original)
    else:
        stack.callback(delattr, owner, name)
    setattr(owner, name, _routed(original, around))


def _wrap_everywhere(stack: contextlib.ExitStack, name: str, around: Around) -> None:
    """Wrap a function of :mod:`torch.nn.utils` in every module that has imported it by its name."""
    original = getattr(torch.nn.utils, name)
    wrapper = _routed(original, around)
    for module in list(sys.modules.values()):
        namespace = getattr(module, "__dict__", None)
        if isinstance(namespace, dict) and namespace.get(name) is original:
            stack.callback(setattr, module, name, original)
            setattr(module, name, wrapper)
