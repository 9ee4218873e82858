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
    register_optimizer_step_pre_hook,
)

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
    before_forward: Callable[[torch.nn.Module], None],
    after_forward: Callable[[torch.nn.Module], None],
) -> Iterator[None]:
    """Route the calls of a training step through handlers.

    Args:
        handlers: ``backward``, ``zero-grad``, ``scheduler-step``, ``scale``, ``unscale``, ``scaler-step``,
            ``scaler-update``, ``clip-norm``, ``clip-value``, ``mode``. Each is called around the original.
        before_step: Called before every optimizer's step, whichever class it is of; returns other arguments or None.
        before_forward: Called before every module's forward.
        after_forward: Called after it, also when it raised.
    """
    with contextlib.ExitStack() as stack:
        _wrap(stack, torch.autograd, "backward", handlers["backward"])
        for cls in _subclasses(torch.optim.Optimizer):
            if "zero_grad" in vars(cls):
                _wrap(stack, cls, "zero_grad", handlers["zero-grad"])
        _wrap(stack, torch.nn.Module, "zero_grad", handlers["zero-grad"])
        for cls in _subclasses(LRScheduler):
            if "step" in vars(cls):
                _wrap(stack, cls, "step", handlers["scheduler-step"])
        for cls in _subclasses(torch.amp.GradScaler):
            for method, kind in _SCALER.items():
                if method in vars(cls):
                    _wrap(stack, cls, method, handlers[kind])
        _wrap(stack, torch.nn.Module, "train", handlers["mode"])
        for name, kind in (("clip_grad_norm_", "clip-norm"), ("clip_grad_value_", "clip-value")):
            _wrap_everywhere(stack, name, handlers[kind])
        stack.callback(register_optimizer_step_pre_hook(before_step).remove)
        stack.callback(
            torch_module.register_module_forward_pre_hook(
                lambda module, args: before_forward(module)
            ).remove
        )
        stack.callback(
            torch_module.register_module_forward_hook(
                lambda module, args, out: after_forward(module), always_call=True
            ).remove
        )
        yield


_SCALER = {
    "scale": "scale",
    "unscale_": "unscale",
    "step": "scaler-step",
    "update": "scaler-update",
}


def _subclasses(cls: type) -> list[type]:
    """Return a class and all that derive from it."""
    found, stack = [], [cls]
    while stack:
        current = stack.pop()
        if current not in found:
            found.append(current)
            stack += current.__subclasses__()
    return found


def _wrap(stack: contextlib.ExitStack, owner: Any, name: str, around: Around) -> None:
    original = vars(owner)[name]

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return around(original, args, kwargs)

    stack.callback(setattr, owner, name, original)
    setattr(owner, name, wrapper)


def _wrap_everywhere(stack: contextlib.ExitStack, name: str, around: Around) -> None:
    """Wrap a function of :mod:`torch.nn.utils` in every module that has imported it by its name."""
    original = getattr(torch.nn.utils, name)

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return around(original, args, kwargs)

    for module in list(sys.modules.values()):
        namespace = getattr(module, "__dict__", None)
        if isinstance(namespace, dict) and namespace.get(name) is original:
            stack.callback(setattr, module, name, original)
            setattr(module, name, wrapper)
