"""What the calls before a failing one say of its shapes: where a dimension was flattened, dropped or sized."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .history import Fact, Op


_KEEPS_SIZE = frozenset(
    {"relu", "relu_", "gelu", "silu", "tanh", "sigmoid", "dropout", "contiguous", "clone", "detach", "to",
     "float", "double", "half", "leaky_relu", "elu", "softplus", "layer_norm", "batch_norm", "hardtanh"}
)  # fmt: skip


_RESHAPES = frozenset({"flatten", "view", "reshape", "unflatten", "squeeze", "unsqueeze", "expand", "expand_as",
                       "__getitem__", "long", "int", "to", "contiguous", "clone", "repeat", "view_as", "clamp",
                       "type_as", "movedim", "transpose", "permute"})  # fmt: skip


def flattened_from(fact: Fact | None) -> tuple[int, ...]:
    """Return the sizes that were flattened into a tensor's last dimension, such as ``(16, 5, 5)``.

    Empty where the history shows no flattening.
    """
    while fact is not None and fact.made_by is not None and fact.made_by.inputs:
        op, source = fact.made_by, fact.made_by.inputs[0]
        if op.name in ("flatten", "view", "reshape") and len(source.shape) > len(fact.shape):
            last = fact.shape[-1] if fact.shape else 0
            product, sizes = 1, []
            for size in reversed(source.shape):
                product *= size
                sizes.append(size)
                if product >= last:
                    break
            return tuple(reversed(sizes)) if product == last and len(sizes) > 1 else ()
        if op.name not in _KEEPS_SIZE:
            return ()
        fact = source
    return ()


_SPATIAL = {"conv1d": 1, "conv2d": 2, "conv3d": 3}


def dimension_lost(fact: Fact | None, *, several: bool = False) -> Op | None:
    """Return the op that last gave a tensor one dimension fewer than it read, or None.

    Args:
        fact: The tensor.
        several: Also count an op that takes several dimensions away.
    """
    while fact is not None and fact.made_by is not None and fact.made_by.inputs:
        op, source = fact.made_by, fact.made_by.inputs[0]
        lost = len(source.shape) - len(fact.shape)
        if (lost == 1 or (several and lost > 1)) and op.name not in ("flatten", "view", "reshape"):
            return op
        fact = source
    return None


def single_sample(fact: Fact | None) -> tuple[Op, Op | None] | None:
    """Find a convolution that took one sample without a batch dimension on the way to a tensor.

    Returns:
        The convolution, and the op that dropped the batch dimension before it (None where the input
        never had one); None where every convolution got a batch.
    """
    while fact is not None and fact.made_by is not None and fact.made_by.inputs:
        op, source = fact.made_by, fact.made_by.inputs[0]
        if len(source.shape) == _SPATIAL.get(op.name, -2) + 1:
            dropped = dimension_lost(source)
            if dropped is not None and dropped.inputs[0].shape[1:] != dropped.outputs[0].shape:
                dropped = None
            return op, dropped
        fact = source
    return None


def made_from(fact: Fact | None, most: int = 40) -> list[Op]:
    """Return the ops that made a tensor, the last one first, along first inputs of reshaping ops."""
    found: list[Op] = []
    while fact is not None and not fact.name and fact.made_by is not None and len(found) < most:
        found.append(fact.made_by)
        if fact.made_by.name not in _RESHAPES | {
            "add",
            "__add__",
            "__radd__",
            "sub",
            "__sub__",
            "mul",
            "__mul__",
        }:
            break
        fact = fact.made_by.inputs[0] if fact.made_by.inputs else None
    return found


def sized_by(fact: Fact | None, size: int, most: int = 40) -> tuple[Op | None, str]:
    """Follow a size of a tensor back through what it was made of.

    Returns:
        The first op of its history whose result has that size, and the name of the input, parameter
        or buffer that had it before any op; either may be missing.
    """
    maker: Op | None = None
    for _ in range(most):
        if fact is None or fact.name or fact.made_by is None:
            return maker, fact.name if fact is not None else ""
        maker = fact.made_by
        fact = next((f for f in maker.inputs if size in f.shape), None)
    return maker, ""


def named_source(fact: Fact | None, most: int = 40) -> str:
    """Return the name of the input, parameter or buffer that a tensor was reshaped from, or empty."""
    for _ in range(most):
        if fact is None:
            return ""
        if fact.name:
            return fact.name
        if fact.made_by is None or fact.made_by.name not in _RESHAPES or not fact.made_by.inputs:
            return ""
        fact = fact.made_by.inputs[0]
    return ""
