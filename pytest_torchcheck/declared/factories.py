"""Which class a declared model is of: told without building it where that can be."""

from __future__ import annotations

import functools
import typing
from typing import TYPE_CHECKING, Any

from torch import nn

from ..state import isolated

if TYPE_CHECKING:
    from collections.abc import Callable


def class_of(model: nn.Module | Callable[[], nn.Module]) -> type[nn.Module] | None:
    """Return the class of a model or of what its factory says that it returns; None where it does not say.

    Args:
        model: A module, a class, a ``partial`` of one, or a factory; its return annotation counts
            if it is a class of the project's own, since ``-> nn.Module`` says nothing.
    """
    if isinstance(model, nn.Module):
        return type(model)
    made: Any = model
    while isinstance(made, functools.partial):
        made = made.func
    if not isinstance(made, type):
        try:
            made = typing.get_type_hints(made).get("return")
        except (NameError, TypeError, AttributeError):  # a name that exists for type checkers only
            return None
    if isinstance(made, type) and issubclass(made, nn.Module) and made is not nn.Module:
        return made
    return None


def not_built(made: Any) -> str:
    """Return what is wrong with what a factory returned, which is no module."""
    given = (
        f"the class {made.__name__}"
        if isinstance(made, type)
        else f"a value of type {type(made).__name__}"
    )
    return f"the factory must return an nn.Module; it returned {given}"


def class_built(model: Callable[[], nn.Module]) -> type[nn.Module]:
    """Build a factory's model once to see its class; random states are put back, the model is dropped.

    Raises:
        Exception: Whatever the factory raises; TypeError where it returns no module.
    """
    with isolated():
        made = model()
    if not isinstance(made, nn.Module):
        raise TypeError(not_built(made))
    return type(made)
