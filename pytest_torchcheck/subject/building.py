"""What a model must be before it can be run: hashable, with values, on one device and in one dtype."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ..objects.modes import sets_modes
from ..state import is_lazy
from ..text.printable import message_of
from .errors import SubjectError, UnmeasurableError

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from .errors import Phase


class UnhashableError(TypeError):
    """A module that cannot be in a set.

    Attributes:
        kind: Its class.
    """

    def __init__(self, kind: type) -> None:
        super().__init__(f"{kind.__name__} cannot be hashed: parameters(), to() and train() raise")
        self.kind = kind


_LISTS = ("modules", "named_modules", "children", "named_children", "buffers", "named_buffers")


def require_hashable(model: nn.Module) -> None:
    """Check what ``parameters()``, ``modules()`` and every optimizer need: that modules can be in a set.

    Raises:
        UnhashableError: The class of a module has no usable ``__hash__``.
        Exception: Whatever a class raises that lists its parts in a way of its own.
    """
    stack, seen, held = [model], set(), 0
    while stack:
        module = stack.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        try:
            hash(module)
        except Exception as error:
            raise UnhashableError(type(module)) from error
        for name in _LISTS:
            if getattr(type(module), name) is not getattr(nn.Module, name):
                next(iter(getattr(module, name)()), None)
        parts = [part for part in module._modules.values() if part is not None]
        stack.extend(part for part in parts if issubclass(type(part), nn.Module))  # no mock of one
        held += sum(part is not None for part in module._parameters.values())
    _require_parameters(model, held)


def _require_parameters(model: nn.Module, held: int) -> None:
    """Check that a model which holds parameters shows any to an optimizer, and to a check.

    Raises:
        TypeError: A method of the user's gives none of them.
    """
    if not held or isinstance(model, torch.jit.ScriptModule):
        return
    for name in ("named_parameters", "parameters"):
        if next(iter(getattr(model, name)()), None) is None:
            kind = type(model).__name__
            raise TypeError(
                f"{kind}.{name}() gives none of the {held} parameters that its modules hold, so that no optimizer "
                f"and no check sees them; do not override {name}() in {kind}, or let it give those that train"
            )


def _refused(parameter: torch.Tensor) -> str | None:
    """Name the method of a parameter's that its class does not carry out as a tensor does, if any."""
    if is_lazy(parameter):
        return None
    try:
        parameter.numel()
    except Exception:  # the class decides what it raises
        return "Tensor.numel"
    try:
        return None if isinstance(parameter.detach(), torch.Tensor) else "Tensor.detach"
    except Exception:
        return "Tensor.detach"


def materialised(model: nn.Module) -> nn.Module:
    """Return a model that holds values which can be read.

    Raises:
        UnmeasurableError: All its parameters are on the meta device, where there are shapes alone, or
            the class of one refuses what every check asks of a parameter.
    """
    for name, parameter in model.named_parameters():
        if type(parameter) is not nn.Parameter and (refused := _refused(parameter)) is not None:
            raise UnmeasurableError(
                f"{name} is a {type(parameter).__name__}, whose __torch_function__ does not support "
                f"{refused}; checks need plain parameters"
            )
    first = next((p for p in model.parameters() if not is_lazy(p)), None)
    if first is not None and all(p.is_meta for p in model.parameters()):
        raise UnmeasurableError(
            "every parameter is on the meta device, which holds shapes and no values; declare a factory that "
            'gives them values, such as model.to_empty(device="cpu") and an initialisation'
        )
    return model


def refused_mode(
    model: nn.Module,
    phase: Callable[[Phase], AbstractContextManager[None]],
    pristine: Callable[[], AbstractContextManager[nn.Module]],
) -> str:
    """Say how ``train()`` or ``eval()`` raises, with which every check sets the mode; empty where neither does.

    Args:
        model: Asked only where a class has a method of its own for it.
        phase: Turns what is raised into a ``SubjectError``.
        pristine: Puts the model back.
    """
    for method in ("train", "eval") if sets_modes(model) else ():
        try:
            with phase("build"), pristine():
                getattr(model, method)()
        except SubjectError as error:
            return (
                f"{method}() of the model raises {type(error.error).__name__}: "
                f"{message_of(error.error)[:140]}; every check sets the mode by it"
            )
    return ""


def wrapped_tensor(model: nn.Module) -> str | None:
    """Return the class of the first parameter or buffer that wraps other tensors, and its name; None without one."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_traceable_wrapper_subclass(tensor):
            return f"{name}, a {type(tensor).__name__},"
    return None


def cast_floats(model: nn.Module, dtype: torch.dtype) -> None:
    """Convert a module's floating parameters and buffers to ``dtype``, and complex ones to its complex dtype, in place.

    Raises:
        UnmeasurableError: A class of the user's, or of a tensor, refuses it.
    """
    complex_dtype = {
        torch.float64: torch.complex128,
        torch.float32: torch.complex64,
        torch.float16: torch.complex32,
    }.get(dtype)

    def cast(tensor: torch.Tensor) -> torch.Tensor:
        if is_lazy(tensor):
            return tensor
        if tensor.is_complex():
            return tensor if complex_dtype is None else tensor.to(complex_dtype)
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    try:
        model._apply(cast)
    except Exception as error:  # in its own words
        said = f"{type(error).__name__}: {message_of(error)[:140]}"
        raise UnmeasurableError(f"the model cannot be cast to {dtype}: {said}") from error
