"""Hooks on gradients that a forward registers, and what they do to the gradient that they are given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..recorded.watch import Op, Watch, in_backward, name_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch import nn

_REGISTER = "Tensor.register_hook"


class Hooks(Watch):
    """Notes the first gradient hook that a forward registers, and the first that changes its argument in place.

    ``torch.Tensor.register_hook`` says that a hook should not modify its argument. One that returns the gradient
    which it has changed means to change it, and is not noted.

    Attributes:
        found: The call that registers the first hook.
        written: The operation that writes to the gradient, in the first hook that does so and returns nothing.
        name: The name of that hook.
    """

    found: Op | None = None
    written: Op | None = None
    name = ""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self._gradient: torch.Tensor | None = None
        self._version = 0
        self._last: Op | None = None

    def before(self, func: Callable[..., Any], args: Any, kwargs: Any) -> None:
        """Look at the gradient ahead of a hook that is registered."""
        if name_of(func) == _REGISTER and args[0].requires_grad:
            args[0].register_hook(self._given)

    def after(
        self, func: Callable[..., Any], args: Any, kwargs: Any, result: Any, token: Any
    ) -> None:
        """Look at it after that hook, and see what writes to it."""
        name = name_of(func)
        if name == _REGISTER:
            self.found = self.found or self.op(_REGISTER)
            hook = args[1] if len(args) > 1 else kwargs.get("hook")
            args[0].register_hook(lambda gradient: self._seen(hook, gradient))
        elif self._last is None and self._is_written(args):
            self._last = self.op(name)

    def _is_written(self, args: Any) -> bool:
        gradient = self._gradient
        if gradient is None or not args or args[0] is not gradient:
            return False
        return in_backward() and gradient._version != self._version

    def _given(self, gradient: torch.Tensor) -> None:
        self._gradient, self._version, self._last = gradient, gradient._version, None

    def _seen(self, hook: Any, gradient: torch.Tensor) -> None:
        before, last, self._gradient = self._gradient, self._last, None
        if self.written is not None or last is None or gradient is not before:
            return
        if callable(hook) and hook(gradient.clone()) is None:
            self.written, self.name = last, getattr(hook, "__name__", type(hook).__name__)
