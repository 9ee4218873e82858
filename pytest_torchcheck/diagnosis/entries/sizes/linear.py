"""Linear layers whose input has another number of features."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from torch import nn

from ....explanation import Explanation, describe, on_line, times
from ....findings import Culprit
from ...crashes.layers import (
    edit,
    flattened_from,
    input_fact,
    input_of,
    or_declared,
    single_sample,
    size_values,
    where_decided,
)
from ...crashes.table import entry

if TYPE_CHECKING:
    import re

    import torch

    from ...crashes.history import Fact, Op
    from ...crashes.scene import Scene


@entry(r"mat1 and mat2 shapes cannot be multiplied \((\d+)x(\d+) and (\d+)x(\d+)\)",
       r"size mismatch, m1: \[(\d+) x (\d+)\], m2: \[(\d+) x (\d+)\]")  # fmt: skip
def linear(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """A Linear layer whose input has another number of features than it was built for."""
    module = scene.module
    given = input_of(scene)
    if not isinstance(module, nn.Linear) or given is None or given.dim() == 0:
        return None
    want, got, name = module.in_features, given.shape[-1], scene.module_name
    if want == got:
        return None
    sizes = flattened_from(input_fact(scene))
    product = f" = {'*'.join(map(str, sizes))}" if sizes else ""
    model_input = scene.input_words()
    origin_words = f" from input {model_input.split(' ', 1)[1]}" if sizes and model_input else ""
    summary = f"Linear {name} expects {want} features, got {got}{product}{origin_words}"
    observed = f"{name} takes {want} features; its input is {describe(given)}"
    observed += f"; the model's input is {model_input}" if model_input else ""
    call = scene.location
    call_line = on_line(call)
    place, origin = where_decided(scene, want)
    common: dict[str, Any] = {"code": "matmul-shapes", "summary": summary, "observed": observed}
    alone = single_sample(input_fact(scene)) if given.numel() == want else None
    if alone is not None:
        return _without_batch(scene, *alone, common)
    batch = scene.batch_size()
    if (
        batch is not None
        and given.dim() == 2
        and given.shape[0] != batch
        and given.numel() == batch * want
    ):
        fixed = _batch_written(input_fact(scene), given.shape[0])
        if fixed is not None:
            return _fixed_batch(scene, fixed, given, batch, common)
    if given.dim() > 2 and math.prod(given.shape[1:]) == want:
        return scene.explain(
            **common,
            cause=f"the input of {name} is not flattened",
            because=f"{times(given.shape[1:])} = {want} numbers per sample, and they spread over "
            f"{given.dim() - 1} dimensions",
            fix=f"call {name} with .flatten(1) of its input{call_line}",
            culprits=scene.culprit(detail=f"takes {want} features"),
        )
    first = int(batch is not None and given.shape[0] == batch)  # a batch of that size by chance
    if want in given.shape[first:-1]:
        dimension = list(given.shape).index(want, first)
        return scene.explain(
            **common,
            cause=f"likely the dimensions of {name}'s input are swapped: a Linear layer works on the last one",
            because=f"dimension {dimension} of its input has the {want} that it expects, the last one has {got}",
            fix=f"call {name} with .transpose({dimension}, -1) of its input{call_line}",
            culprits=scene.culprit(detail=f"takes {want} features"),
        )
    if (joined := _joined(input_fact(scene), want)) is not None:
        widths = [fact.shape[-1] for fact in joined.inputs]
        return scene.explain(
            **common,
            cause=f"torch.{joined.name}{on_line(joined.location)} joins its {len(widths)} tensors along another "
            "dimension than the last one, which holds the features",
            because=f"{' + '.join(map(str, widths))} = {want}, the features that {name} takes; {scene.said}",
            fix=f"join them along the last dimension: dim=-1{on_line(joined.location)}",
            culprits=(
                Culprit("call", joined.name, "joins along another dimension", joined.location),
                *scene.culprit(detail=f"takes {want} features, got {got}"),
            ),
            location=joined.location,
        )
    if sizes:
        cause = f"in_features of {name} does not match the result of flattening {times(sizes)}"
        because = (
            f"{'*'.join(map(str, sizes))} = {got}, and {name}.weight is {list(module.weight.shape)}"
        )
        side = math.isqrt(want // sizes[0]) if want % sizes[0] == 0 else 0
        if len(sizes) == 3 and side and side * side * sizes[0] == want:
            because += f"; {want} would be {sizes[0]} maps of {side}x{side}"
    else:
        cause = f"{name} was built for {want} features, and its input has {got}"
        because = f"{name}.weight is {list(module.weight.shape)}; {scene.said}"
    return scene.explain(
        **common,
        cause=cause,
        because=because,
        fix=edit(scene, origin, place, got, f"build {name} with in_features={got}")
        + or_declared(scene, want, got),
        culprits=scene.culprit(detail=f"takes {want} features, got {got}")
        + scene.call_culprit()
        + size_values(scene, beside=place),
        location=place,
    )


_JOINS = ("cat", "concat", "concatenate")


def _joined(fact: Fact | None, want: int) -> Op | None:
    """Return the call that joined some tensors to what a layer reads, if along the last dimension they had its size."""
    op = None if fact is None else fact.made_by
    while op is not None and op.name not in _JOINS:  # back through what keeps the shape
        one = op.inputs[0] if len(op.inputs) == 1 else None
        op = (
            one.made_by
            if one is not None and fact is not None and one.shape == fact.shape
            else None
        )
    shapes = [one.shape for one in op.inputs] if op is not None else []
    if fact is None or len(shapes) < 2 or sum(shape[-1] for shape in shapes if shape) != want:
        return None
    alike = all(len(s) == len(fact.shape) and s[:-1] == shapes[0][:-1] for s in shapes)
    return op if alike and shapes[0][-1] == fact.shape[-1] else None


def _without_batch(
    scene: Scene, convolution: Op, dropped: Op | None, common: dict[str, Any]
) -> Explanation:
    """Explain a flattening that keeps the channels of one sample apart, as if they were a batch."""
    name, sample = scene.module_name, list(convolution.inputs[0].shape)
    at = dropped.location if dropped is not None else None
    call = at or scene.location
    word = (
        "an index"
        if dropped is not None and dropped.name == "__getitem__"
        else dropped and dropped.name
    )
    return scene.explain(
        **common,
        cause="the batch dimension is missing"
        + (f": {word} on line {at.line} drops it" if at is not None else " in the model's input"),
        because=f"{convolution.name} got one sample {sample}, and flattening keeps its channels as "
        f"if they were a batch: together they have the {scene.module.in_features} features "  # type: ignore[union-attr]
        f"that {name} takes",
        fix=f"keep the batch dimension on line {at.line}, or put it back with .unsqueeze(0)"
        if at is not None
        else "give the model a batch: .unsqueeze(0) of a single sample, and a batch dimension in the declared inputs",
        culprits=scene.call_culprit()
        if at is None
        else (Culprit("call", at.function.rpartition("<locals>.")[2] or at.text, location=at),),
        location=call,
    )


def _batch_written(fact: Fact | None, rows: int) -> Op | None:
    """Return the reshape that was given the number of rows as a number."""
    while fact is not None and fact.made_by is not None and fact.made_by.inputs:
        op = fact.made_by
        if op.name in ("view", "reshape") and fact.shape[:1] == (rows,) != op.inputs[0].shape[:1]:
            return op
        fact = op.inputs[0]
    return None


def _fixed_batch(
    scene: Scene, op: Op, given: torch.Tensor, batch: int, common: dict[str, Any]
) -> Explanation:
    """Explain a batch size that is written into a reshape."""
    place, rows = op.location, given.shape[0]
    line = on_line(place)
    holder = (place.function.rpartition("<locals>.")[2] if place is not None else "") or op.name
    return scene.explain(
        **common,
        cause=f"{op.name}{line} gives {rows} rows regardless of the batch: a batch size is "
        "hard-coded",
        because=f"the batch has {batch} samples; {rows} rows of {given.shape[1]} hold as much as "
        f"{batch} of the "
        f"{given.numel() // batch} that {scene.module_name} takes",
        fix=f"write x.shape[0] instead of {rows}{line}, or use .flatten(1)",
        culprits=(Culprit("call", holder, f"gives {rows} rows", place),),
        location=place,
    )
