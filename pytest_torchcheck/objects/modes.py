"""Set the mode of modules that use the name ``train`` for something else, or have one mode alone."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from torch import nn

from .peek import attributes


def give_modes(model: nn.Module) -> tuple[str, ...]:
    """Let ``train()`` and ``eval()`` set the mode, also where a class overrides ``train`` with other arguments.

    Such a class breaks ``eval()``, which calls ``train(False)``. Its instances get an attribute
    that sets the mode where it is given one, and calls the class's own ``train`` otherwise. A
    program that ``torch.export`` made raises in both: it stays in its only mode.

    Args:
        model: The model; its instances are changed, no class is.

    Returns:
        Names of the modules that were given one.
    """
    found = own_trains(model)
    for name in found:
        module = model.get_submodule(name)
        if _is_exported(module):
            module.__dict__["train"] = module.__dict__["eval"] = functools.partial(stay, module)
        else:
            module.__dict__["train"] = functools.partial(train, module)
    return found


def own_trains(model: nn.Module) -> tuple[str, ...]:
    """Name the modules whose ``train`` takes no mode: by their class, or as an exported program."""
    return tuple(
        name
        for name, module in model.named_modules()
        if _is_exported(module) or not _takes_mode(type(module).train)
    )


def has_modes(model: nn.Module) -> bool:
    """Say whether ``train`` and ``eval`` do something: not in a program that ``torch.export`` made."""
    return not any(
        _is_exported(module) or getattr(attributes(module).get("train"), "func", None) is stay
        for module in model.modules()
    )


def stay(module: nn.Module, mode: bool = True) -> nn.Module:
    """Leave a module in the only mode it has."""
    return module


def _is_exported(module: nn.Module) -> bool:
    own = attributes(module).get("train")  # torch.export replaces it on the instance, to raise
    return getattr(own, "__module__", "").startswith("torch.export")


def train(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Set the mode, or call what the class itself means by ``train``."""
    given = [*args, *kwargs.values()]
    if set(kwargs) <= {"mode"} and len(given) <= 1 and all(isinstance(v, bool) for v in given):
        return nn.Module.train(module, *given)
    return type(module).train(module, *args, **kwargs)


@functools.cache
def _takes_mode(function: Any) -> bool:
    """Say whether a ``train`` can be called as torch's is: with nothing, or with the mode alone."""
    if function is nn.Module.train:
        return True
    try:
        parameters = list(inspect.signature(function).parameters.values())[1:]
    except (TypeError, ValueError):
        return True
    kinds = {p.kind for p in parameters}
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return True
    needed = [p for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
    first = parameters[0] if parameters else None
    if first is None or len(needed) > 1 or (needed and needed[0] is not first):
        return False
    if first.name == "mode" or isinstance(first.default, bool) or "bool" in str(first.annotation):
        return True
    code = getattr(function, "__code__", None)
    return code is not None and ("__class__" in code.co_freevars or "training" in code.co_names)
