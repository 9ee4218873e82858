"""Attributes that hold what the caller of ``__init__`` gave: training data, tables, weights of classes."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap

from torch import nn


def given_to_init(model: nn.Module, name: str) -> bool:
    """Say whether an attribute is an argument of its module's ``__init__``, as it is or converted.

    Such a tensor belongs to whoever builds the model (the training data of a Gaussian process): a
    new instance is given it again. A value that ``__init__`` computes or draws is the model's own.

    Args:
        model: The model.
        name: Qualified name of the attribute, such as ``kernel.train_inputs``; an index behind it
            is ignored.
    """
    path = name.split("[", 1)[0].split(".")
    owner: object = model
    for depth, word in enumerate(path):
        inside = owner._modules.get(word) if isinstance(owner, nn.Module) else None
        if inside is None:
            return any(word in _given(cls) for cls in type(owner).__mro__) and depth < len(path)
        owner = inside
    return False


@functools.cache
def _given(cls: type) -> frozenset[str]:
    """Return the attributes that a class's own ``__init__`` assigns from its arguments."""
    init = vars(cls).get("__init__")
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(init))) if init is not None else None
    except (OSError, TypeError, SyntaxError):
        return frozenset()
    if tree is None or not isinstance(tree.body[0], ast.FunctionDef):
        return frozenset()
    function = tree.body[0]
    arguments = function.args
    names = {a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
    names -= {a.arg for a in function.args.args[:1]}
    found: set[str] = set()
    for node in ast.walk(function):
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            found |= _assigned(target, node.value, names)
    return frozenset(found)


def _assigned(target: ast.expr, value: ast.expr, names: set[str]) -> set[str]:
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        pairs = zip(target.elts, value.elts, strict=False)
        return set().union(*(_assigned(t, v, names) for t, v in pairs))
    if isinstance(target, ast.Attribute) and _is_argument(value, names):
        return {target.attr}
    return set()


def _is_argument(value: ast.expr, names: set[str]) -> bool:
    """Say whether an expression is an argument, or a chain of methods of one: ``x.clone().float()``."""
    while isinstance(value, (ast.Call, ast.Attribute, ast.Subscript)):
        value = value.func if isinstance(value, ast.Call) else value.value
    return isinstance(value, ast.Name) and value.id in names
