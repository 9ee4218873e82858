"""Targets and outputs that do not fit binary cross entropy or a regression loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ....explanation import Explanation, describe, dtype_word, numbers, on_line
from ....findings import Culprit
from ...crashes.losses_called import (
    criterion_culprits,
    criterion_of,
    loss_call,
    target_culprit,
)
from ...crashes.table import entry
from ...gradient.heads import heads_behind, widened

if TYPE_CHECKING:
    import re

    from ....explanation import Explanation
    from ...crashes.scene import Scene


_BINARY_LOSSES = ("binary_cross_entropy_with_logits", "binary_cross_entropy")


@entry(
    r"[Tt]arget size \(torch\.Size\(\[([\d, ]*)\]\)\) (?:that is different to|must be the same as) (?:the )?input size \(torch\.Size\(\[([\d, ]*)\]\)\)"
)
def binary_shape(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """BCE of an output and a target with different shapes."""
    target, given = numbers(match[1]), numbers(match[2])
    name = next((n for n in _BINARY_LOSSES if scene.called(n) is not None), "the loss")
    place = scene.location
    head: tuple[Culprit, ...] = ()
    if given == (*target, 1):
        cause = "the output has a last dimension of 1 that the targets lack"
        fix = f"call .squeeze(-1) on the output{scene.on_line}"
    elif target == (*given, 1):
        cause = "the targets have a last dimension of 1 that the output lacks"
        fix = f"call .squeeze(-1) on the targets{scene.on_line}"
    elif given[: len(target)] == target and len(given) == len(target) + 1:
        cause = (
            f"the output has {given[-1]} columns per target: class indices need cross_entropy, "
            "BCE needs one column or one-hot targets"
        )
        fix = f"use cross_entropy, or one_hot(targets, {given[-1]}).float(){scene.on_line}"
    elif given and given[:1] + given[2:] == target[:1] + target[2:]:
        _, output, _, _ = loss_call(scene, _BINARY_LOSSES)
        head = heads_behind(scene.model, output, given[1])
        cause = f"the head gives {given[1]} outputs per sample, and there are {target[1]} targets"
        fix = f"{widened(head, f'{target[1]} outputs')}, or correct the targets"
    else:
        cause = "output and targets have different sizes"
        fix = f"make both the same shape{scene.on_line}"
    return scene.explain(
        code="target-shape",
        summary=f"{name} received targets {list(target)} for an output {list(given)}",
        observed=f"output {list(given)}, target {list(target)}",
        cause=cause,
        fix=fix,
        culprits=(*target_culprit(str(list(target)), place, scene), *head),
    )


@entry(r"result type (\w+) can't be cast to the desired output type (\w+)",
       r"Found dtype (\w+) but expected (\w+)")  # fmt: skip
def binary_dtype(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """BCE or a regression loss whose targets have another dtype than the output."""
    name, given, target, _ = loss_call(
        scene, (*_BINARY_LOSSES, "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
    )
    place = scene.location
    if given is None or target is None:
        if scene.phase != "backward":
            return None
        found, wanted = dtype_word(match[1]), dtype_word(match[2])
        return scene.explain(
            code="target-dtype",
            summary=(
                f"backward got a {found} gradient for a {wanted} output: the targets are "
                f"likely {found}"
            ),
            observed=f"{found} where {wanted} is expected",
            cause=f"likely the targets of the loss are {found} (NumPy's default is float64)",
            fix="call .float() on the targets of the loss",
            culprits=target_culprit(found, place, scene),
        )
    want, got = dtype_word(str(given.dtype)), dtype_word(str(target.dtype))
    if want == got:
        return None
    from_numpy = got == "float64" and want == "float32"
    return scene.explain(
        code="target-dtype",
        summary=f"{name} received {got} targets for a {want} output",
        observed=f"output {describe(given)}, target {describe(target)}",
        cause="the targets are float64, NumPy's default"
        if from_numpy
        else f"the targets are {got}; {name} needs the dtype of the output",
        fix=f"call .to(output.dtype) on the targets{scene.on_line} or where the data is read",
        culprits=target_culprit(got, place, scene),
    )


@entry(r"all elements of (input|target) should be between 0 and 1")
def binary_range(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """binary_cross_entropy of numbers that are no probabilities."""
    _, given, target, _ = loss_call(scene, ("binary_cross_entropy",))
    value = given if match[1] == "input" else target
    place = scene.location
    if value is None:
        return None
    criterion = criterion_of(scene)
    name = criterion or "binary_cross_entropy"
    made = criterion_culprits(place, criterion)
    real = value.detach().float()
    broken = int((~torch.isfinite(real)).sum())
    finite = real[torch.isfinite(real)]
    span = (
        f"{float(finite.min()):.4g}..{float(finite.max()):.4g}"
        if finite.numel()
        else "no finite value"
    )
    observed = f"{match[1]} {describe(value)}, {span}" + (
        f", {broken} not finite" if broken else ""
    )
    if broken:
        cause = f"the {match[1]} holds NaN or infinities"
        fix = "find where the first one arises (finiteness check)"
        summary = f"{name} received {broken} values that are not finite"
    elif match[1] == "input":
        cause = "the output is not a probability: a sigmoid is missing"
        fix = (
            f"use BCEWithLogitsLoss instead of BCELoss on line {made[0].location.line}"
            if made and made[0].location is not None
            else (
                "use "
                f"{'BCEWithLogitsLoss' if criterion else 'binary_cross_entropy_with_logits'}{scene.on_line}"
            )
        )
        summary = f"{name} received outputs in {span}, not in 0..1"
    else:
        cause = "the targets are not probabilities"
        fix = "scale the targets to 0..1 where the data is read"
        summary = f"{name} received targets in {span}, not in 0..1"
    kind = (
        target_culprit(span, place, scene)
        if match[1] == "target"
        else (*made, Culprit("output", "output", span, place))
    )
    return scene.explain(
        code="probability-range",
        summary=summary,
        observed=observed,
        cause=cause,
        because=f"{match[1]} ranges over {span}; {scene.said}",
        fix=fix,
        culprits=kind,
    )


_REGRESSIONS = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")


def regression_shape(scene: Scene) -> Explanation | None:
    """Explain one target for several columns of an output; None where that is not what a regression loss was given."""
    name, given, target, _ = loss_call(scene, _REGRESSIONS)
    if given is None or target is None or given.shape[:-1] != target.shape:
        return None
    columns = given.shape[-1]
    whole = not target.is_floating_point()
    place = scene.location
    return scene.explain(
        code="target-shape",
        summary=f"{name} received targets {list(target.shape)} for an output {list(given.shape)}",
        observed=f"output {list(given.shape)}, target {list(target.shape)}",
        cause=f"the output has {columns} columns per target"
        + (": class indices need cross_entropy, not a regression loss" if whole else ""),
        fix=(
            f"use cross_entropy{scene.on_line}"
            if whole
            else (
                f"give the model's last layer one output and call .squeeze(-1) on it{scene.on_line}"
            )
        ),
        culprits=target_culprit(str(list(target.shape)), place, scene),
    )


_WEIGHED = (*_BINARY_LOSSES, "multilabel_soft_margin_loss", *_REGRESSIONS)


def weights_shape(scene: Scene) -> Explanation | None:
    """Explain weights of a loss that do not fit its output; None where its weights do, or it has none."""
    given = next((known for name in _WEIGHED if (known := scene.called(name)) is not None), {})
    output = given.get("input")
    for key in ("pos_weight", "weight"):
        weight = given.get(key)
        if not isinstance(weight, torch.Tensor) or not isinstance(output, torch.Tensor):
            continue
        shapes = list(weight.shape), list(output.shape)
        behind = zip(reversed(shapes[0]), reversed(shapes[1]), strict=False)
        if len(shapes[0]) <= len(shapes[1]) and all(n in (1, m) for n, m in behind):
            continue
        made = criterion_culprits(scene.location, criterion_of(scene))
        place = made[0].location if made else scene.location
        return scene.explain(
            code="class-weights",
            summary=f"{key} of the loss is {shapes[0]}, and the output {shapes[1]}",
            observed=f"{key} {shapes[0]}, output {shapes[1]}",
            cause=f"{key} was created for another number of columns than the output has",
            because=f"its sizes are not the last ones of the output; {scene.said}",
            fix=f"give {key}= one entry for each column of the output, which has {shapes[1][-1]}{on_line(place)}",
            culprits=(*made, Culprit("loss", key, f"{shapes[0]}", scene.location)),
            location=place,
        )
    return None
