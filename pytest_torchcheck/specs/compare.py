"""Hold an output against its declared spec."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..objects import trees
from .shapes import ShapeMismatch
from .tensors import TensorSpec
from .walk import spec_leaves

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch


def mismatch(spec: Any, output: Any, sizes: Mapping[str, int]) -> tuple[str, str, str] | None:
    """Compare an output with its spec.

    Args:
        spec: A tree of specs; a single spec describes the first floating tensor of the output.
        output: What the model returned.
        sizes: Sizes of the symbols in the batch that it was called with.

    Returns:
        Path, what is declared and what came out, of the first tensor that does not fit; None if all fit.
    """
    if isinstance(spec, TensorSpec):
        found = trees.floats(output) or trees.tensors(output)
        if not found:
            return (
                "output",
                str(spec.shape.text if spec.shape else spec),
                f"a {type(output).__name__} without a tensor",
            )
        path, tensor = next(iter(found.items()))
        return _one(spec, path, tensor, dict(sizes))
    known = dict(sizes)
    tensors = trees.tensors(output)
    for path, wanted in spec_leaves(spec, "output").items():
        if path not in tensors:
            return path, wanted.shape.text if wanted.shape else "a tensor", "missing"
        if (wrong := _one(wanted, path, tensors[path], known)) is not None:
            return wrong
    return None


def beyond(allowed: tuple[float, float] | None, output: Any) -> tuple[str, float, float] | None:
    """Find an output with values outside a range.

    Args:
        allowed: The least and the largest value; None where every value is.
        output: What the model returned.

    Returns:
        Path, least and largest value of the first real floating-point tensor that exceeds it; None if none does.
    """
    if allowed is None:
        return None
    for path, tensor in trees.floats(output).items():
        values = trees.dense(tensor)
        if values.numel() == 0 or values.is_complex():
            continue
        low, high = float(values.min()), float(values.max())
        if low < allowed[0] or high > allowed[1]:
            return path, low, high
    return None


def _one(
    spec: TensorSpec, path: str, tensor: torch.Tensor, known: dict[str, int]
) -> tuple[str, str, str] | None:
    kind = str(tensor.dtype).removeprefix("torch.")
    got = f"{kind}{list(tensor.shape)}"
    if spec.shape is not None:
        try:
            known.update(spec.shape.match(tuple(tensor.shape), known, name=path))
        except ShapeMismatch:
            sizes = ", ".join(f"{n}={s}" for n, s in known.items() if n in spec.shape.text)
            return path, f"'{spec.shape.text}'" + (f" with {sizes}" if sizes else ""), got
    if spec.explicit_dtype and tensor.dtype not in spec.dtypes:
        return path, " or ".join(str(d).removeprefix("torch.") for d in spec.dtypes), got
    return None
