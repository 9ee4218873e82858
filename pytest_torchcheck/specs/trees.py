"""Trees of specs: tuples, lists, dicts, and objects whose leaves are specs."""

from __future__ import annotations

from typing import Any

import torch

from .shape_parsing import parse_shape
from .shapes import SpecError
from .tensors import TensorSpec
from .walk import rebuild, walk


def as_spec_tree(value: Any, field: str) -> Any:
    """Read a declaration of inputs, targets or outputs.

    Args:
        value: A shape, a spec, None, or a tuple, list, dict, dataclass, plain object or registered
            pytree of these, nested at will.
        field: What to call it in an error.

    Returns:
        The same tree with a `TensorSpec` for every leaf; None, numbers and booleans stay what they are.

    Raises:
        SpecError: A leaf is neither a shape nor a spec, or its shape is wrong.
    """

    def read(path: str, leaf: Any) -> Any:
        if leaf is None or isinstance(leaf, (TensorSpec, bool, float)):
            return leaf
        if isinstance(leaf, int) and path != field:
            return leaf  # a constant argument among specs
        if isinstance(leaf, str):
            return TensorSpec(parse_shape(leaf, path).text)
        if isinstance(leaf, torch.Tensor):
            raise SpecError(
                f"{path}: got a tensor of shape {list(leaf.shape)}; {field}= takes specs, such as "
                "'B 3 H W'; give real data as batch=(inputs, targets)"
            )
        raise SpecError(
            f"{path} = {leaf!r}: not a spec; allowed: a shape such as 'B 3 H W', a spec such as "
            "Labels('B', classes=10), or a tuple, list or dict of these"
        )

    return rebuild(field, value, read)


def spec_leaves(tree: Any, path: str) -> dict[str, TensorSpec]:
    """Every spec of a tree by its path."""
    return {where: leaf for where, leaf in walk(path, tree) if isinstance(leaf, TensorSpec)}
