"""Which axis of which tensor follows which symbol: read off specs, inferred where there are none."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from ..specs.shapes import Expr, ShapeMismatch, SpecError
from .read import is_dense
from .resample import Dims, Plan, infer_dims

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..specs.sizes import SizeRange
    from ..specs.tensors import TensorSpec
    from .batch import Batch


_NUMBER: Final = re.compile(r"\[\d+\]")


def shape_of(value: Any) -> tuple[int, ...] | None:
    """The shape of a leaf: of a packed sequence the padded one, of a ragged nested tensor None."""
    if isinstance(value, PackedSequence):
        return (int(value.batch_sizes[0]), len(value.batch_sizes), *value.data.shape[1:])
    if isinstance(value, Tensor) and not value.is_nested:
        return tuple(value.shape)
    return None


def read_sizes(
    specs: Mapping[str, TensorSpec], batch: Batch, declared: Mapping[str, SizeRange]
) -> dict[str, int]:
    """Read the sizes of symbols off a real batch.

    Raises:
        SpecError: The batch lacks a tensor that has a spec.
        ShapeMismatch: A tensor is not what its spec says.
    """
    known: dict[str, int] = {}
    choices = {name: span.values for name, span in declared.items() if span.relation is None}
    found = dict(batch.leaves(packed=False))
    for path, spec in specs.items():
        if path not in found:
            raise SpecError(
                f"{path} has a spec, but the real batch has no such tensor; it has: "
                f"{', '.join(found) or 'none'}; declare as many inputs, by the same names, as the "
                "batch holds"
            )
        shape = shape_of(found[path])
        if spec.shape is not None and shape is not None:
            known = spec.shape.match(shape, known, name=path, choices=choices)
    for name, span in declared.items():
        if span.relation is None or name not in known:
            continue
        if all(symbol in known for symbol in span.relation.symbols()):
            size = span.relation.value_at(known)
            if size != known[name]:
                raise ShapeMismatch(
                    f"the real batch has {name} = {known[name]}, where sizes say {name} = {span.relation} = {size}"
                )
    return known


def guess_sizes(batch: Batch, batch_dim: int | None) -> dict[str, int]:
    """The batch's size as the symbol ``B``, where there are no specs."""
    if batch_dim is not None:
        for _, leaf in batch.input_leaves(packed=False):
            shape = shape_of(leaf)
            if shape is not None and len(shape) > batch_dim:
                return {"B": shape[batch_dim]}
    return {}


def plan_axes(
    specs: Mapping[str, TensorSpec],
    batch: Batch,
    batch_axis: tuple[Expr, int] | None,
    outputs: list[TensorSpec],
) -> dict[str, Plan]:
    """Say for every leaf of a real batch how it follows the sizes.

    Args:
        specs: By path.
        batch: The real batch, with its sizes.
        batch_axis: The batch's symbol and where it stands.
        outputs: Specs of the output, whose axes targets often share.
    """
    sizes = batch.sizes
    patterns: list[tuple[tuple[int, ...], Dims]] = [
        (spec.shape.resolve(sizes), spec.shape.dims(sizes))
        for spec in outputs
        if spec.shape is not None and all(symbol in sizes for symbol in spec.shape.symbols())
    ]
    plans: dict[str, Plan] = {}
    found = dict(batch.leaves(packed=False))
    for path, leaf in found.items():
        own, shape = specs.get(path), shape_of(leaf)
        if own is None or own.shape is None:
            continue
        dims = own.shape.dims(sizes)
        plans[path] = Plan(
            dims, sure=all(symbol in sizes for dim in dims for symbol in dim.symbols())
        )
        if shape is not None:
            patterns.append((shape, dims))
    inputs = {path for path, _ in batch.input_leaves(packed=False)}
    if not plans and batch_axis is not None:
        first = next(
            (s for _, v in batch.input_leaves() if (s := shape_of(v)) and len(s) > batch_axis[1]),
            (),
        )
        patterns.append((first, tuple(_plain(first, batch_axis))))
    alone = _alone(found, batch_axis, sizes)
    for path, leaf in found.items():
        if path in plans or not isinstance(leaf, (Tensor, PackedSequence)):
            continue
        shape = shape_of(leaf)
        if shape is None or not is_dense(leaf) or path in alone:
            plans[path] = Plan(tuple(None for _ in shape or ()), sure=False, follows_batch=False)
            continue
        fits = (
            batch_axis is not None
            and len(shape) > batch_axis[1]
            and shape[batch_axis[1]] == sizes.get(batch_axis[0].name)
        )
        plan = infer_dims(shape, patterns, batch_axis if fits else None)
        if not fits and not plan.sure and path in inputs:
            plan = _beside(shape, patterns, batch_axis)
        plans[path] = plan
    return plans


def _alone(
    found: Mapping[str, Any], batch_axis: tuple[Expr, int] | None, sizes: Mapping[str, int]
) -> set[str]:
    """Return the paths of tensors that belong to one sample each: in a list with an entry for each, not all as long as it.

    A pair of targets is no such list, however large the batch is.
    """
    size = 0 if batch_axis is None else sizes.get(batch_axis[0].name, 0)
    groups: dict[str, set[str]] = {}
    other: set[str] = set()
    for path, leaf in found.items() if batch_axis is not None and size > 1 else ():
        key = _NUMBER.sub("[]", path)
        groups.setdefault(key, set()).add(path)
        shape = shape_of(leaf) or ()
        if batch_axis is not None and shape[batch_axis[1] :][:1] != (size,):
            other.add(key)
    samples = (key for key in other if len(groups[key]) == size and (size > 2 or key[-2:] != "[]"))
    return {path for key in samples for path in groups[key]}


def _plain(shape: tuple[int, ...], batch_axis: tuple[Expr, int]) -> list[Expr | None]:
    return [
        batch_axis[0] if i == batch_axis[1] else Expr("number", size)
        for i, size in enumerate(shape)
    ]


def _beside(
    shape: tuple[int, ...],
    patterns: list[tuple[tuple[int, ...], Dims]],
    batch_axis: tuple[Expr, int] | None,
) -> Plan:
    """An input without the batch's axis, such as a ``(T, T)`` mask: it may stay when only the batch's size changes."""
    others = {
        size
        for sizes, dims in patterns
        for size, dim in zip(sizes, dims, strict=True)
        if batch_axis is None or dim != batch_axis[0]
    }
    free = all(size in others or size == 1 for size in shape)
    return Plan(tuple(None for _ in shape), sure=False, follows_batch=free)
