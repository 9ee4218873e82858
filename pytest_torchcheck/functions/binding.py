"""Bind a callable to its arguments: which are checked, what they are called, which cannot be moved."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ..objects.peek import closed_over
from .calls import Call, generators_of, is_float


def make_call(
    fn: Callable[..., Any],
    inputs: Any,
    *,
    wanted: Iterable[int] | None = None,
    optional: Iterable[int] = (),
    linked: Iterable[int] = (),
    kwargs: Mapping[str, Any] | None = None,
    function: type[torch.autograd.Function] | None = None,
    seed: int = 0,
) -> Call:
    """Bind a callable to its arguments.

    Args:
        fn: ``SomeFunction.apply`` or any callable.
        inputs: A tuple of positional arguments, a dict of keyword arguments, or one tensor. If any
            tensor requires a gradient, only those that do are checked; else all floating ones.
        wanted: Flat indices to check instead.
        optional: Flat indices for which None is accepted.
        linked: Flat indices that forward also reads through another argument, besides those found here.
        kwargs: Keyword arguments beside positional ``inputs``.
        function: The class to read names and lines from, where ``fn`` is not its ``apply``.
        seed: Every run starts from it.
    """
    if isinstance(fn, type) and issubclass(fn, torch.autograd.Function):
        fn = fn.apply  # the class itself is meant, not one of its objects
    applied = function_behind(fn)
    function = function or applied
    args, named = _arguments(fn, applied, inputs)
    named.update(kwargs or {})
    values, spec = pytree.tree_flatten((tuple(args), named))
    nested = _nested(args, named)
    floats = [i for i, value in enumerate(values) if isinstance(value, Tensor) and is_float(value)]
    if applied is not None:  # a Function sees no tensor inside a list
        floats = [i for i in floats if not nested[i]]
    fixed = {*linked, *linked_arguments(values)}
    carried = [i for i in floats if i in fixed]
    floats = [i for i in floats if i not in fixed]
    if wanted is None:
        asked = [i for i in floats if values[i].requires_grad]
        wanted = asked or floats
    return Call(
        fn=fn,
        values=tuple(value.detach() if isinstance(value, Tensor) else value for value in values),
        spec=spec,
        names=_names(fn, function, args, named),
        wanted=tuple(i for i in wanted if i in floats),
        optional=tuple(optional),
        carried=tuple(carried),
        function=function,
        generators=tuple(generators_of(fn, function, values)),
        seed=seed,
    )


def linked_arguments(values: Sequence[Any]) -> list[int]:
    """Return the tensors that another argument (a module, a closure) also holds.

    Such a Function takes parameters as arguments only to return their gradients (reversible blocks,
    adjoint solvers); forward reads them through the module, so that moving the argument moves nothing.
    """
    held: set[int] = set()
    for value in values:
        if not isinstance(value, Tensor):
            held |= _held_by(value, depth=3)
    return [i for i, value in enumerate(values) if isinstance(value, Tensor) and id(value) in held]


def _held_by(thing: Any, depth: int) -> set[int]:
    if isinstance(thing, Tensor):
        return {id(thing)}
    if isinstance(thing, nn.Module):
        return {id(t) for t in (*thing.parameters(), *thing.buffers())}
    if depth == 0 or isinstance(thing, (str, bytes, int, float, complex, type, torch.Generator)):
        return set()
    inner: list[Any] = []
    if isinstance(thing, functools.partial):
        inner = [thing.func, *thing.args, *thing.keywords.values()]
    elif isinstance(thing, (list, tuple, set, frozenset)):
        inner = list(thing)
    elif isinstance(thing, Mapping):
        inner = list(thing.values())
    else:
        inner += [getattr(thing, "__self__", None), *getattr(thing, "__dict__", {}).values()]
        if getattr(thing, "__closure__", None):
            inner += closed_over(thing).values()
    return {found for each in inner if each is not None for found in _held_by(each, depth - 1)}


def function_behind(fn: Any) -> type[torch.autograd.Function] | None:
    """Return the Function whose bound ``apply`` this is, else None."""
    owner = getattr(fn, "__self__", None)
    if (
        isinstance(owner, type)
        and issubclass(owner, torch.autograd.Function)
        and getattr(fn, "__name__", "") == "apply"
    ):
        return owner
    return None


def _signature(fn: Any, function: type | None) -> list[inspect.Parameter]:
    target = fn
    if function is not None:
        target = function.forward  # type: ignore[attr-defined]
    try:
        parameters = list(inspect.signature(target).parameters.values())
    except (TypeError, ValueError):
        return []
    if function is not None and not _separate_context(function):
        parameters = parameters[1:]
    return parameters


def _separate_context(function: Any) -> bool:
    return function.setup_context is not torch.autograd.Function.setup_context


def _arguments(fn: Any, function: type | None, inputs: Any) -> tuple[list[Any], dict[str, Any]]:
    if isinstance(inputs, Mapping):
        given = dict(inputs)
        if function is None:
            return [], given
        args = []  # Function.apply takes positional arguments
        for parameter in _signature(fn, function):
            if parameter.name in given:
                args.append(given.pop(parameter.name))
            elif parameter.default is not inspect.Parameter.empty and given:
                args.append(parameter.default)
        if given:
            raise TypeError(f"forward of {function.__name__} has no argument {', '.join(given)}")
        return args, {}
    if isinstance(inputs, (tuple, list)):
        return list(inputs), {}
    return [inputs], {}


def _nested(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[bool]:
    flags: list[bool] = []
    for value in [*args, *kwargs.values()]:
        leaves, spec = pytree.tree_flatten(value)
        flags += [not spec.is_leaf()] * len(leaves)
    return flags


def _names(
    fn: Any, function: type | None, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[str, ...]:
    parameters = _signature(fn, function)
    named: list[tuple[str, Any]] = []
    for position, value in enumerate(args):
        name = f"input {position}"
        if position < len(parameters):
            kind = parameters[position].kind
            if kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD):
                name = parameters[position].name
        named.append((name, value))
    names: list[str] = []
    for name, value in [*named, *kwargs.items()]:
        leaves, spec = pytree.tree_flatten(value)
        if spec.is_leaf():
            names.append(name)
        else:
            names += [f"{name}[{i}]" for i in range(len(leaves))]
    return tuple(names)
