"""Set the mode of modules that use the name ``train`` for something else, or have one mode alone."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from torch import nn

from .peek import attributes


def give_modes(model: nn.Module) -> tuple[str, ...]:
    """Let ``train()`` and ``eval()`` set the mode, also where a class overrides one of them with other arguments.

    A ``train`` with other arguments breaks ``eval()``, which calls ``train(False)``. Such instances get
    attributes that set the mode where they are given one or nothing, and call the class's own method
    otherwise. A program that ``torch.export`` made raises in both: it stays in its only mode.

    Args:
        model: The model; its instances are changed, no class is.

    Returns:
        Names of the modules that were given one.
    """
    found = own_trains(model)
    for name, module in model.named_modules():
        held = module.__dict__
        if _is_exported(module):
            held["train"] = held["eval"] = functools.partial(stay, module)
        elif name in found:
            held["train"] = functools.partial(train, module)
            held["eval"] = functools.partial(evaluate, module)
        elif _lacks(type(module).train):
            held["train"] = functools.partial(train, module)
    return found


def own_trains(model: nn.Module) -> tuple[str, ...]:
    """Name the modules whose ``train`` takes no mode, or whose ``eval`` needs arguments, and exported programs."""
    return tuple(
        name
        for name, module in model.named_modules()
        if _is_exported(module) or not takes_mode(type(module).train) or _lacks(type(module).eval)
    )


def needs_modes(model: nn.Module) -> bool:
    """Say whether :func:`give_modes` has something to do."""
    return bool(own_trains(model)) or any(_lacks(type(m).train) for m in model.modules())


def sets_modes(model: nn.Module) -> bool:
    """Say whether a class of the model's has a ``train``, ``eval`` or ``__setattr__`` of its own, which may raise."""
    names = ("train", "eval", "__setattr__")
    kinds = {type(module) for module in model.modules()}
    return any(getattr(kind, n) is not getattr(nn.Module, n) for kind in kinds for n in names)


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
    modes = set(kwargs) <= {"mode"} and len(given) <= 1 and all(isinstance(v, bool) for v in given)
    kind = type(module).train
    if not modes:
        return kind(module, *args, **kwargs)
    mode = bool(given[0]) if given else True
    return kind(module, mode) if takes_mode(kind) else nn.Module.train(module, mode)


def evaluate(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Set evaluation mode, or call what the class itself means by ``eval``."""
    kind = type(module).eval
    own = args or kwargs or not _lacks(kind)
    return (kind if own else nn.Module.eval)(module, *args, **kwargs)


@functools.cache
def _lacks(function: Any) -> bool:
    """Say whether a method cannot be called with nothing."""
    parameters = _parameters(function) or []
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return any(p.default is p.empty and p.kind not in variadic for p in parameters)


def _parameters(function: Any) -> list[inspect.Parameter] | None:
    try:
        return list(inspect.signature(function).parameters.values())[1:]
    except (TypeError, ValueError):
        return None


@functools.cache
def takes_mode(function: Any) -> bool:
    """Say whether a ``train`` can be called as torch's is: with nothing, or with the mode alone."""
    if function is nn.Module.train:
        return True
    if (parameters := _parameters(function)) is None:
        return True
    kinds = {p.kind for p in parameters}
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return True
    needed = [p for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
    first = parameters[0] if parameters else None
    if (
        first is None
        or first.kind is first.KEYWORD_ONLY
        or len(needed) > 1
        or (needed and needed[0] is not first)
    ):
        return False
    if first.name == "mode" or isinstance(first.default, bool) or "bool" in str(first.annotation):
        return True
    if not needed:
        return False  # its default says that it is no mode
    code = getattr(function, "__code__", None)
    return code is not None and ("__class__" in code.co_freevars or "training" in code.co_names)
