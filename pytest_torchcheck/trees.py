"""Find the tensors in whatever a model takes or returns, each with its path."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

_DEPTH = 8


def leaves(value: Any, path: str = "", depth: int = _DEPTH) -> Iterator[tuple[str, Any]]:
    """Iterate over ``(path, leaf)`` of tensors and plain values in nested containers and objects.

    Dicts, tuples, lists, named tuples, dataclasses, PackedSequence and plain objects are entered;
    what holds no tensor is a leaf.
    """
    if isinstance(value, torch.Tensor) or depth == 0:
        yield path, value
    elif isinstance(value, PackedSequence):
        yield f"{path}.data", value.data
        yield f"{path}.batch_sizes", value.batch_sizes
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from leaves(item, f"{path}[{key!r}]", depth - 1)
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        for name in value._fields:
            yield from leaves(getattr(value, name), f"{path}.{name}", depth - 1)
    elif isinstance(value, list | tuple):
        for place, item in enumerate(value):
            yield from leaves(item, f"{path}[{place}]", depth - 1)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from leaves(getattr(value, field.name), f"{path}.{field.name}", depth - 1)
    elif isinstance(value, torch.nn.Module | torch.distributions.Distribution):
        if isinstance(value, torch.distributions.Distribution):
            for name in sorted(value.arg_constraints):
                if isinstance(item := value.__dict__.get(name), torch.Tensor):
                    yield f"{path}.{name}", item
    elif hasattr(value, "__dict__") and not callable(value) and vars(value):
        for name, item in vars(value).items():
            if not name.startswith("__"):
                yield from leaves(item, f"{path}.{name}", depth - 1)
    else:
        yield path, value


def substitute(value: Any, others: Mapping[int, torch.Tensor]) -> Any:
    """Return a structure with some of its tensors replaced.

    Args:
        value: Nested dicts, tuples and lists.
        others: By ``id()`` of a tensor, what takes its place.

    Returns:
        The new structure, or None for one that cannot be rebuilt.
    """
    if isinstance(value, torch.Tensor):
        return others.get(id(value), value)
    if isinstance(value, dict):
        made = {key: substitute(item, others) for key, item in value.items()}
        if type(value) is dict:
            return made
        try:
            return type(value)(**{str(k): v for k, v in made.items()})
        except TypeError:
            return None
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(substitute(item, others) for item in value))
    if isinstance(value, list | tuple):
        return type(value)(substitute(item, others) for item in value)
    return None if floats(value) else value


def tensors(value: Any, root: str = "output") -> dict[str, torch.Tensor]:
    """Return every tensor of ``value`` by its path below ``root``."""
    return {path: leaf for path, leaf in leaves(value, root) if isinstance(leaf, torch.Tensor)}


def floats(value: Any, root: str = "output") -> dict[str, torch.Tensor]:
    """Return the floating-point and complex tensors of ``value`` by path."""
    return {
        path: tensor
        for path, tensor in tensors(value, root).items()
        if tensor.is_floating_point() or tensor.is_complex()
    }


def signature(value: Any) -> tuple[tuple[str, str], ...]:
    """Return the structure: path and type (tensors: dtype and rank) of every leaf."""
    return tuple(
        (
            path,
            f"{leaf.dtype} rank {leaf.dim()}"
            if isinstance(leaf, torch.Tensor)
            else type(leaf).__name__,
        )
        for path, leaf in leaves(value)
    )


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """Return a strided, detached view or copy of any tensor; quantized ones are dequantized."""
    tensor = tensor.detach()
    if tensor.is_quantized:
        return tensor.dequantize()
    if tensor.layout != torch.strided:
        return (
            torch.cat([part.reshape(-1) for part in tensor.unbind()])
            if tensor.is_nested
            else tensor.to_dense()
        )
    return tensor.resolve_conj().resolve_neg()


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Say whether two tensors are bit-equal, counting NaN as equal to NaN."""
    a, b = dense(a), dense(b)
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.device.type == "meta":
        return True
    return torch.equal(a, b) or bool(((a == b) | ((a != a) & (b != b))).all())


def worst(a: torch.Tensor, b: torch.Tensor) -> float:
    """Return ``max|a - b|``; infinite where only one of them is finite or the shapes differ."""
    a, b = dense(a), dense(b)
    if a.shape != b.shape:
        return float("inf")
    if a.numel() == 0:
        return 0.0
    wide = torch.complex128 if a.is_complex() or b.is_complex() else torch.float64
    x, y = a.to(wide), b.to(wide)
    gap = (x - y).abs()
    equal = (x == y) | ((x != x) & (y != y))
    return float(
        torch.where(
            equal, torch.zeros_like(gap), gap.nan_to_num(nan=float("inf"), posinf=float("inf"))
        ).max()
    )


def scale(tensor: torch.Tensor) -> float:
    """Return the largest finite magnitude, 0 for an empty tensor."""
    values = dense(tensor)
    if values.numel() == 0:
        return 0.0
    magnitude = values.abs().to(torch.float64)
    return float(magnitude.nan_to_num(nan=0.0, posinf=0.0).max())


def pick(value: Any, path: int | str | tuple[int | str, ...] | None) -> Any:
    """Return the part of an output that a path names; the first tensor when the path is None.

    Raises:
        KeyError: Nothing stands at that path.
    """
    if path is None:
        found = floats(value) or tensors(value)
        if not found:
            raise KeyError("the output holds no tensor")
        return next(iter(found.values()))
    for step in path if isinstance(path, tuple) else (path,):
        try:
            value = (
                getattr(value, step)
                if isinstance(step, str) and hasattr(value, step)
                else value[step]
            )
        except (TypeError, LookupError):
            raise KeyError(
                f"the output has no {step!r}; it holds {', '.join(tensors(value)) or 'no tensor'}"
            ) from None
    return value
