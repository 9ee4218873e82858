"""Class labels that do not fit the loss: out of range, of a wrong dtype or shape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ...explanation import Explanation, describe, dtype_word, on_line, times
from ...findings import Culprit
from ..crashes.layers import sized_by
from ..crashes.losses_called import (
    criterion_built,
    criterion_culprits,
    criterion_of,
    loss_call,
    target_culprit,
)
from ..crashes.table import entry
from ..gradient.heads import heads_behind, widened

if TYPE_CHECKING:
    import re

    from ..crashes.history import Op
    from ..crashes.scene import Scene

_CLASS_LOSSES = ("cross_entropy", "nll_loss", "multi_margin_loss", "multilabel_margin_loss")
_MARKS = {
    -100: "the default ignore_index of cross_entropy",
    -1: "a common value for 'no label'",
    255: "a common value for 'no label'",
}


@entry(r"Target (-?\d+) is out of bounds", r"(?:^|\W)target out of range")
def label_range(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """Class labels outside 0 .. C-1."""
    name, logits, target, frame = loss_call(scene, _CLASS_LOSSES)
    if logits is None or target is None or logits.dim() == 0 or target.numel() == 0:
        return None
    dimension = 1 if logits.dim() > 1 else 0
    classes = logits.shape[dimension]
    ignore = frame.get("ignore_index", -100)
    kept = target[target != ignore] if isinstance(ignore, int) else target
    low, high = int(kept.min()), int(kept.max())
    outside = kept[(kept < 0) | (kept >= classes)]
    worst = int(outside[0]) if outside.numel() else int(match[1])
    values = torch.unique(outside).tolist()
    observed = f"target {describe(target)}, min {low}, max {high}; logits {describe(logits)}"
    times = int((kept == worst).sum())
    count = f"{worst} occurs {'once' if times == 1 else f'{times} times'} in {kept.numel()} targets"
    place = scene.location
    made = target_culprit(f"{low}..{high}", place, scene)
    head = heads_behind(scene.model, logits, classes)
    common: dict[str, Any] = {
        "code": "label-range",
        "observed": observed,
        "culprits": (*made, *head[:1]),
        "location": made[0].location,
    }
    summary = _outside(high, classes, values, worst)
    if len(values) == 1 and worst in _MARKS and worst != ignore:
        return _mark_counted(scene, made, common, summary, worst, ignore, count, name)
    if low >= 1 and high == classes:
        return _from_one(common, summary, kept, high, scene)
    if logits.dim() > 2 and logits.shape[-1] > high >= 0 and logits.shape[-1] != classes:
        return scene.explain(
            **common,
            summary=summary,
            cause=(
                f"the class dimension must be dimension 1; {name} reads the {classes} of "
                "dimension 1 as classes"
            ),
            because=(
                f"the last dimension of the logits, {logits.shape[-1]}, would hold every "
                f"target (0..{high}); {scene.said}"
            ),
            fix=f"call .movedim(-1, 1) on the logits{scene.on_line}",
        )
    if high < classes:
        return scene.explain(
            **common,
            summary=summary,
            cause=f"the head gives {classes} classes, the data a negative label",
            because=f"{count}; {scene.said}",
            fix="correct the negative labels where the data is read, or pass them as ignore_index",
        )
    common["culprits"] = (*made, *head)
    return scene.explain(
        **common,
        summary=summary,
        cause=f"the head gives {classes} classes, the data {high + 1}",
        because=f"{count}; {scene.said}",
        fix=f"{widened(head, f'{high + 1} classes')}, or correct the labels",
    )


def _outside(high: int, classes: int, values: Any, worst: int) -> str:
    """Say which targets are no class."""
    if high >= classes and values != [255]:
        summary = f"targets reach {high} but the head has {classes} classes, 0..{classes - 1}"
    else:
        summary = f"targets hold {worst} but the classes are 0..{classes - 1}"
    return summary


def _mark_counted(
    scene: Scene,
    made: tuple[Culprit, ...],
    common: dict[str, Any],
    summary: str,
    worst: int,
    ignore: Any,
    count: str,
    name: str,
) -> Explanation | None:
    """Explain a mark for ignored targets that the loss does not ignore."""
    built = criterion_built(scene, made[0].location)
    at = f" on line {built[0].location.line}" if built and built[0].location else scene.on_line
    return scene.explain(
        **{
            **common,
            "culprits": (*built, *common["culprits"]),
            "location": built[0].location if built else common["location"],
        },
        summary=summary,
        cause=f"{worst} is {_MARKS[worst]}, and the loss ignores {ignore}",
        because=f"{count}; every other target is a class; {scene.said}",
        fix=f"write ignore_index={worst} in {built[0].name if built else name}{at}",
    )


def _from_one(
    common: dict[str, Any], summary: str, kept: torch.Tensor, high: int, scene: Scene
) -> Explanation | None:
    """Explain labels that count from one."""
    return scene.explain(
        **common,
        summary=summary,
        cause="labels start at 1",
        because=(
            f"0 never occurs in {kept.numel()} targets, {high} occurs "
            f"{int((kept == high).sum())} times; {scene.said}"
        ),
        fix=(
            "subtract 1 from the labels where the data is read (on CUDA the same bug is a "
            "device-side assert)"
        ),
    )


@entry(r"expected target dtype to be Long or Byte, but got (\w+)",
       r"expected scalar type Long but found (\w+)",
       r"not implemented for '(Int|Short|Char|Float|Double|Half|Bool)'")  # fmt: skip
def label_dtype(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """Class labels that are no int64."""
    name, logits, target, _ = loss_call(scene, _CLASS_LOSSES)
    if logits is None or target is None:
        return None
    found = dtype_word(match[1])
    if dtype_word(str(target.dtype)) != found:
        return None
    place = scene.location
    whole = target.is_floating_point() and bool((target == target.round()).all())
    why = (
        "torch.tensor of Python floats, a float column or a float32 conversion of the whole sample"
        if target.is_floating_point()
        else ""
    )
    return scene.explain(
        code="label-dtype",
        summary=f"targets are {found}, and {name} needs int64 class indices",
        observed=f"target {describe(target)}; logits {describe(logits)}",
        cause=f"the labels are {found}" + (f": they come from {why}" if why else ""),
        because=("every target is a whole number; " if whole else "") + scene.said,
        fix=f"call .long() on the targets{scene.on_line} or where the data is read",
        culprits=(made := target_culprit(found, place, scene)),
        location=made[0].location,
    )


@entry(r"Expected floating point type for target with class probabilities, got (\w+)",
       r"0D or 1D target tensor expected, multi-target not supported",
       r"Expected target size \[([\d, ]+)\], got \[([\d, ]+)\]",
       r"Expected input batch_size \((\d+)\) to match target batch_size \((\d+)\)",
       r"size mismatch \(got input: \[([\d, ]+)\] ?, target: \[([\d, ]+)\]",
       r"only batches of spatial targets supported",
       r"(?:input|logits) and target (?:batch|shape).* (?:to match|must match)")  # fmt: skip
def label_shape(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """Class targets of another shape than the logits allow."""
    name, logits, target, _ = loss_call(scene, _CLASS_LOSSES)
    if logits is None or target is None:
        return None
    place = scene.location
    want = (logits.shape[0], *logits.shape[2:]) if logits.dim() > 1 else ()
    observed = f"logits {describe(logits)}, target {describe(target)}"
    code, change = "label-shape", ""
    head: tuple[Culprit, ...] = ()
    because = scene.said
    if match[0].startswith("Expected floating point type") or (
        target.shape == logits.shape and not target.is_floating_point() and target.dim() > 1
    ):
        cause = "the targets are one-hot integers"
        if bool((target.sum(1) == 1).all()) and bool(((target == 0) | (target == 1)).all()):
            because = (
                f"each of the {target.shape[0]} rows holds a single 1 and otherwise 0; {scene.said}"
            )
        change = "call .argmax(1) on the targets, or .float() to use them as probabilities"
    elif target.dim() == logits.dim() and target.dim() > 1 and target.shape[1] == 1:
        cause = f"the targets have a dimension of 1 too many: {list(target.shape)} for {list(want)}"
        change = "call .squeeze(1) on the targets"
    elif (
        target.is_floating_point()
        and target.dim() == logits.dim()
        and target.shape[0] == logits.shape[0]
    ):
        cause = (
            f"the targets are probabilities of {target.shape[1]} classes, and the logits have "
            f"{logits.shape[1]}"
        )
        head = heads_behind(scene.model, logits, logits.shape[1])
        change = widened(head, f"{target.shape[1]} classes")
    elif logits.dim() > 2 and tuple(target.shape) == tuple(logits.shape[:-1]):
        cause = (
            "the class dimension must be dimension 1, and it is last in the logits "
            f"{list(logits.shape)}"
        )
        because = f"the targets {list(target.shape)} are the logits' first sizes; {scene.said}"
        change = "call .movedim(-1, 1) on the logits"
    elif logits.dim() == 2 and target.dim() == 1 and logits.shape[0] != target.shape[0]:
        cause, change = _rows(scene, logits, target)
    elif (grown := _grown(scene, logits, target)) is not None and grown.location is not None:
        return _broadcast_in_model(scene, grown, name, observed, target)
    elif logits.dim() > 2 and len(want) == target.dim() and want[0] == target.shape[0]:
        return _other_maps(scene, name, logits, target, observed)
    else:
        cause = f"logits {list(logits.shape)} need targets {list(want)}, got {list(target.shape)}"
        change = f"reshape the targets to {list(want)}"
    return scene.explain(
        code=code,
        summary=f"{name} received targets {list(target.shape)} for logits {list(logits.shape)}",
        observed=observed,
        cause=cause,
        because=because,
        fix=change if change.startswith("give") else f"{change}{scene.on_line}",
        culprits=(*(made := target_culprit(describe(target), place, scene)), *head),
        location=made[0].location,
    )


def _rows(scene: Scene, logits: torch.Tensor, target: torch.Tensor) -> tuple[str, str]:
    """Return cause and fix of logits that have another number of rows than the targets."""
    more, less = max(logits.shape[0], target.shape[0]), min(logits.shape[0], target.shape[0])
    cause = f"the logits hold {logits.shape[0]} rows, the targets {target.shape[0]}"
    batch = scene.batch_size()
    if batch and more - less == batch:
        cause += (
            f": one more position per sample ({more} - {less} = {batch}, the batch size), as "
            "when only one side is shifted by one"
        )
        change = "shift logits and targets by the same position"
    elif less and more % less == 0:
        cause += (
            f": {more // less} rows for each target, so a dimension was flattened or kept on "
            "one side only"
        )
        change = "flatten logits and targets in the same way"
    else:
        change = "compute one row of logits for each target"
    return cause, change


def _other_maps(
    scene: Scene, name: str, logits: torch.Tensor, target: torch.Tensor, observed: str
) -> Explanation:
    """Explain logits for other positions than the targets': name the call that gave them their size."""
    sizes = zip(logits.shape[2:], target.shape[1:], strict=True)
    size, meant = next((a, b) for a, b in sizes if a != b)
    made_of = (op for op in reversed(scene.forward_ops) if tuple(logits.shape) in
               [fact.shape for fact in op.outputs])  # fmt: skip
    op = next(made_of, None)
    while op is not None:
        before, _ = sized_by(next((f for f in op.inputs if size in f.shape), None), size)
        if before is None:
            break
        op = before
    place = op.location if op is not None else None
    line = f" on line {place.line}" if place is not None else scene.on_line
    gives = f"{op.name}{line} gives the {size}; " if op is not None and place is not None else ""
    made = target_culprit(describe(target), scene.location, scene)
    if op is not None and place is not None:
        holder = place.function.rpartition("<locals>.")[2] or op.name
        made = (Culprit("call", holder, f"gives {size}", place), *made)
    return scene.explain(
        code="label-shape",
        summary=f"{name} received targets {list(target.shape)} for logits {list(logits.shape)}",
        observed=observed,
        cause=(
            f"the logits are for {times(logits.shape[2:])} positions, the targets for "
            f"{times(target.shape[1:])}"
        ),
        because=f"{gives}{scene.said}",
        fix=f"give the output the targets' size{line}: {meant} instead of {size}",
        culprits=made,
        location=place or made[0].location,
    )


def _grown(scene: Scene, logits: torch.Tensor, target: torch.Tensor) -> Op | None:
    """Return the operation that broadcast logits of the right rank against another tensor, both of them growing."""
    for op in reversed(scene.forward_ops):
        made = op.outputs[0].shape if len(op.outputs) == 1 else ()
        if made != tuple(logits.shape) or len(op.inputs) != 2:
            continue
        shapes = [fact.shape for fact in op.inputs]
        fitting = [
            s for s in shapes if len(s) == target.dim() + 1 and s[:1] == tuple(target.shape[:1])
        ]
        if fitting and made not in shapes:
            return op
    return None


def _broadcast_in_model(
    scene: Scene, op: Op, name: str, observed: str, target: torch.Tensor
) -> Explanation:
    first, second = (list(fact.shape) for fact in op.inputs)
    made, place = list(op.outputs[0].shape), op.location
    line = on_line(place)
    holder = (place.function.rpartition("<locals>.")[2] if place else "") or op.module or op.name
    return scene.explain(
        code="label-shape",
        summary=f"{name} received targets {list(target.shape)} for logits {made}",
        observed=observed,
        cause=f"{first} and {second} are broadcast to {made}{line}: both are stretched",
        because=(
            f"{op.name} enlarged both operands, and one of them has a row for each target; "
            f"{scene.said}"
        ),
        fix=(
            f"make both operands the same shape{line} (squeeze one, or index the smaller one "
            "with None)"
        ),
        culprits=(Culprit("call", holder, f"gives {made}", place),),
        location=place,
    )


@entry(
    r"weight tensor should be defined either for all (\d+) classes or no classes but got weight tensor of shape: \[([\d, ]+)\]"
)
def class_weights(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """Class weights for another number of classes."""
    made = criterion_culprits(scene.location, criterion_of(scene))
    place = made[0].location if made else scene.location
    return scene.explain(
        code="class-weights",
        summary=f"the loss has weights for {match[2]} classes, the logits have {match[1]}",
        observed=f"weight [{match[2]}], {match[1]} classes",
        cause="the class weights were created for another number of classes",
        fix=f"give weight= {match[1]} entries{f' on line {place.line}' if place else ''}",
        culprits=(
            *made,
            Culprit("loss", "weight", f"[{match[2]}]", scene.location),
        ),
        location=place,
    )
