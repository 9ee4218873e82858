"""Walk through whatever holds tensors or specs, trees of specs too, and build the same thing with other leaves.

Dicts, tuples, lists, named tuples, dataclasses, PackedSequence, pytrees that are registered with
torch, and plain objects are entered. Paths are spelled as Python would: ``x``, ``x[0]``,
``x['mask']``, ``x.data``.
"""

from __future__ import annotations

import copy
import dataclasses
import types
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence
from torch.utils import _pytree as pytree

from ..objects.peek import attributes, slots, tuple_like
from ..text.printable import shown
from .shape_parsing import parse_shape
from .shapes import SpecError
from .tensors import TensorSpec

DEPTH = 8
"""Objects inside objects are not entered further than this."""

_ATOMS = (
    type(None), bool, int, float, complex, str, bytes, type, Tensor, torch.dtype, torch.device, torch.Generator,
    torch.nn.Module, types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType,
)  # fmt: skip

Parts = list[tuple[str, Any]]
Leaf = Callable[[str, Any], Any]


def walk(
    path: str, value: Any, *, packed: bool = True, depth: int = DEPTH
) -> Iterator[tuple[str, Any]]:
    """Iterate over the leaves of ``value`` with their paths.

    Args:
        path: The path of ``value`` itself.
        value: Anything.
        packed: Whether the data of a PackedSequence is a leaf, rather than the whole.
        depth: How far to enter.
    """
    parts = _parts(value, packed) if depth else None
    if parts is None:
        yield path, value
    else:
        for key, part in parts:
            yield from walk(path + key, part, packed=packed, depth=depth - 1)


def rebuild(path: str, value: Any, leaf: Leaf, *, packed: bool = True, depth: int = DEPTH) -> Any:
    """Build ``value`` again with ``leaf(path, leaf)`` in place of every leaf; arguments as in `walk`."""
    parts = _parts(value, packed) if depth else None
    if parts is None:
        return leaf(path, value)
    if isinstance(value, PackedSequence):
        return _packed(value, leaf(f"{path}.data", value.data))
    made = [rebuild(path + key, part, leaf, packed=packed, depth=depth - 1) for key, part in parts]
    return _like(value, made)


def _parts(value: Any, packed: bool) -> Parts | None:
    """What a container holds, each with its piece of path; None for a leaf."""
    if isinstance(value, _ATOMS):
        return None
    if isinstance(value, PackedSequence):
        return [(".data", value.data)] if packed else None
    if isinstance(value, Mapping):
        return [(f"[{shown(key)}]", part) for key, part in value.items()]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return [(f".{name}", getattr(value, name)) for name in value._fields]
    if isinstance(value, (tuple, list)):
        return [(f"[{i}]", part) for i, part in enumerate(value)]
    if type(value) in pytree.SUPPORTED_NODES:
        parts = pytree.tree_leaves(value, is_leaf=lambda part: part is not value)
        return [(f"[{i}]", part) for i, part in enumerate(parts)]
    if dataclasses.is_dataclass(value):
        return [(f".{f.name}", getattr(value, f.name)) for f in dataclasses.fields(value)]
    if _is_plain(value):
        return [(f".{name}", part) for name, part in _own(value).items()]
    return None


def _is_plain(value: Any) -> bool:
    return not callable(value) and bool(_own(value))


def _own(value: Any) -> dict[str, Any]:
    """Return the attributes of an object, those in slots too, but of our own specs."""
    ours = type(value).__module__.partition(".")[0] == __name__.partition(".")[0]
    return attributes(value) if ours else {**slots(value), **attributes(value)}


def _like(value: Any, made: list[Any]) -> Any:
    if isinstance(value, Mapping):
        items = dict(zip(value, made, strict=True))
        if type(value) is dict:
            return items
        if isinstance(value, MutableMapping):  # an OrderedDict, or a tokenizer's BatchEncoding
            twin: Any = copy.copy(value)
            if isinstance(value, UserDict):
                twin.data = dict(value.data)  # a UserDict's copy may share its dict
            for key, part in items.items():
                twin[key] = part
            return twin
        return items
    if isinstance(value, tuple):
        return tuple_like(value, made)
    if isinstance(value, list):
        return type(value)(made)
    if type(value) in pytree.SUPPORTED_NODES:
        structure = pytree.tree_structure(value, is_leaf=lambda part: part is not value)
        return pytree.tree_unflatten(made, structure)
    twin = copy.copy(value)
    names = (
        [f.name for f in dataclasses.fields(value)]
        if dataclasses.is_dataclass(value)
        else list(_own(value))
    )
    for name, part in zip(names, made, strict=True):
        object.__setattr__(twin, name, part)
    return twin


def _packed(value: PackedSequence, data: Any) -> PackedSequence:
    def beside(index: Tensor | None) -> Tensor | None:
        return index.to(data.device) if index is not None and isinstance(data, Tensor) else index

    return PackedSequence(
        data, value.batch_sizes, beside(value.sorted_indices), beside(value.unsorted_indices)
    )


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
