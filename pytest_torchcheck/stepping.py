"""Take a step of any optimizer, also of one that evaluates the loss itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .objects.peek import signature_of

if TYPE_CHECKING:
    import inspect
    from collections.abc import Callable

    import torch


def take_step(optimizer: Any, closure: Callable[[], torch.Tensor]) -> None:
    """Call ``optimizer.step``, with a closure where it asks for one.

    LBFGS has no step without a closure; sharpness-aware optimizers have a default of None and refuse it.
    An optimizer that runs without a closure gets none, as in the usual loop.

    Args:
        optimizer: Anything with a ``step``.
        closure: Clears the gradients, runs forward, loss and backward, and returns the loss, a scalar.

    Raises:
        Exception: Whatever the step raises that a closure does not help.
    """
    parameter = _closure_of(optimizer)
    if parameter is not None and parameter.default is parameter.empty:
        optimizer.step(closure)
        return
    try:
        optimizer.step()
    except Exception as error:
        if parameter is None:
            raise
        try:
            optimizer.step(closure)
        except Exception:  # it is not the closure that is missing: the first message says what is
            raise error from None


def _closure_of(optimizer: Any) -> inspect.Parameter | None:
    """Return the parameter of ``step`` that takes a closure, or None."""
    signature = signature_of(optimizer.step)
    return None if signature is None else signature.parameters.get("closure")
